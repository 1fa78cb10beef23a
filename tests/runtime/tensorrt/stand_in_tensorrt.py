"""A stand-in for TensorRT's builder: the recorded API with the documented rules of building.

The parser reads the real ONNX model with its external data. Every input needs minimum, optimum and maximum shapes of
its rank in every profile, and names must match the network. The result is a plan that identifies version, GPU and
damage. It is JSON text without kernels.

TensorRT for RTX has other rules: it measures no kernels, and builds for the given compute capabilities. Other tests use
the real builder; this one makes plans for the stand-in runtime.
"""

# ruff: noqa: ARG002, N802 - names and arguments are those of the real methods

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
from tests.runtime.cuda.stand_in_graphs import StandInGraphs
from tests.runtime.tensorrt.recorded_api import RTX, created, methods_by_name, module_from_surface, surface
from tests.runtime.tensorrt.stand_in_engine import StandInEngines, weights_of_model

PHASES = {"Building engine": 3, "Computing profile costs": 2}
"""Outermost phases of a build with their number of steps. Each contains another phase."""
GPU = "Stand-in GPU"
_TYPES = {
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.FLOAT: "FLOAT",
    onnx.TensorProto.FLOAT16: "HALF",
    onnx.TensorProto.BFLOAT16: "BF16",
}


def stand_in_tensorrt(
    major: int | str, *, gpu: str = GPU, cannot_build: str | None = None, cuda: StandInGraphs | None = None
) -> ModuleType:
    """Return the module for `major` 10, 11 or RTX.

    `cannot_build` is logged by a failing build. With `cuda`, engines run there. The module's `engines` is the
    StandInEngines.
    """
    rules, engines = _Rules(gpu, cannot_build, times=major != RTX), StandInEngines(gpu, cuda, rtx=major == RTX)
    named = {
        **engines.behaviours,
        **methods_by_name(rules, rtx=major == RTX),
        "OnnxParser.num_errors": lambda parser: len(parser.state.errors),
        "ParserError.desc": lambda error: error.state.desc,
        "ParserError.node_name": lambda error: error.state.node_name,
        "ParserError.node_operator": lambda error: error.state.node_operator,
        "IBuilderConfig.get_timing_cache": lambda config: config.state.cache,
        "INetworkDefinition.num_inputs": lambda network: len(network.state.model.graph.input),
        "ITensor.name": lambda tensor: tensor.state.value.name,
        "ITensor.shape": lambda tensor: [-1] * len(tensor.state.value.type.tensor_type.shape.dim),
        "ITensor.get_dimension_name": lambda tensor, index: (
            tensor.state.value.type.tensor_type.shape.dim[index].dim_param
        ),
    }
    rules.trt = engines.trt = module_from_surface(surface(major), named)
    rules.trt.__dict__["engines"] = engines
    return rules.trt


class _Rules:
    """Implementation of the builder's methods."""

    def __init__(self, gpu: str, cannot_build: str | None, *, times: bool) -> None:
        self.trt = ModuleType("tensorrt")
        self._times = times
        self._gpu = gpu
        self._cannot_build = cannot_build

    def Builder____init__(self, builder: Any, logger: Any) -> None:
        builder.state.logger = logger

    def Builder__create_network(self, builder: Any, flags: int = 0) -> Any:
        assert flags & 1 << int(self.trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED), (
            "version 11 has strongly typed networks only"
        )
        network = created(self.trt, "INetworkDefinition")
        network.state.model = None
        network.state.logger = builder.state.logger
        return network

    def OnnxParser____init__(self, parser: Any, network: Any, logger: Any) -> None:
        parser.state.network = network
        parser.state.errors = []

    def OnnxParser__parse(self, parser: Any, model: bytes, path: str | None = None) -> bool:
        """Parse the model. Its external data must be next to `path`."""
        parsed = onnx.load_model_from_string(model)
        external = {
            entry.value
            for tensor in parsed.graph.initializer
            for entry in tensor.external_data
            if entry.key == "location"
        }
        assert path is not None or not external
        missing = [name for name in external if not Path(path or "").with_name(name).is_file()]
        for node in parsed.graph.node:
            if node.op_type == "Attention" and not any(each.name == "TRT_decomposable" for each in node.attribute):
                missing.append(f"a fused kernel for {node.name}")
        if missing:
            parser.state.errors = missing
            return False
        parser.state.network.state.model, parser.state.network.state.path = parsed, path
        return True

    def OnnxParser__get_error(self, parser: Any, index: int) -> Any:
        error = created(self.trt, "ParserError")
        error.state.desc = f"there is no {parser.state.errors[index]}"
        error.state.node_name, error.state.node_operator = f"node {index}", "Attention"
        return error

    def INetworkDefinition__get_input(self, network: Any, index: int) -> Any:
        tensor = created(self.trt, "ITensor")
        tensor.state.value = network.state.model.graph.input[index]
        return tensor

    def IBuilderConfig__set_compute_capability(self, config: Any, compute_capability: Any, index: int) -> bool:
        assert 0 <= index < config.__dict__.get("num_compute_capabilities", 0), "more capabilities than announced"
        config.state.capabilities = {**getattr(config.state, "capabilities", {}), index: compute_capability.name}
        return True

    def IOptimizationProfile__set_shape(self, profile: Any, input: str, min: Any, opt: Any, max: Any) -> None:
        """Check three shapes of the same rank, each at most the next."""
        assert len(min) == len(opt) == len(max)
        assert all(0 < lower <= best <= upper for lower, best, upper in zip(min, opt, max, strict=True)), input
        profile.state.shapes = {**getattr(profile.state, "shapes", {}), input: [list(min), list(opt), list(max)]}

    def IBuilderConfig__add_optimization_profile(self, config: Any, profile: Any) -> int:
        config.state.profiles = [*getattr(config.state, "profiles", []), profile.state.shapes]
        return len(config.state.profiles) - 1

    def IBuilderConfig__set_flag(self, config: Any, flag: Any) -> None:
        config.state.flags = {*getattr(config.state, "flags", ()), flag.name}

    def IBuilderConfig__clear_flag(self, config: Any, flag: Any) -> None:
        config.state.cleared = {*getattr(config.state, "cleared", ()), flag.name}

    def IBuilderConfig__set_memory_pool_limit(self, config: Any, pool: Any, pool_size: int) -> None:
        config.state.limits = {pool.name: pool_size}

    def IBuilderConfig__create_timing_cache(self, config: Any, serialized_timing_cache: bytes) -> Any:
        """Return None for an invalid cache."""
        assert self._times, "TensorRT for RTX would need a GPU"
        text = bytes(serialized_timing_cache)
        if text and not text.startswith(b"timed "):
            return None
        cache = created(self.trt, "ITimingCache")
        cache.state.text = text
        return cache

    def IBuilderConfig__set_timing_cache(self, config: Any, cache: Any, ignore_mismatch: bool) -> bool:
        """Return False for a cache of another version or GPU."""
        if cache.state.text and not ignore_mismatch and not cache.state.text.startswith(self._timed()):
            return False
        config.state.cache = cache
        return True

    def ITimingCache__serialize(self, cache: Any) -> Any:
        return self._memory(cache.state.text)

    def Builder__build_serialized_network_to_stream(self, builder: Any, network: Any, config: Any, writer: Any) -> bool:
        """Report progress, fail if requested, and check the profiles against the network's inputs."""
        state, model = config.state, network.state.model
        assert model is not None, "nothing was parsed"
        ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in model.graph.input}
        for shapes in state.profiles:
            assert {name: len(shape[0]) for name, shape in shapes.items()} == ranks
        for phase, steps in PHASES.items():
            config.progress_monitor.phase_start(phase, None, steps)
            config.progress_monitor.phase_start("inside", phase, 1)
            for step in range(steps):
                if not config.progress_monitor.step_complete(phase, step):
                    return False
            config.progress_monitor.phase_finish("inside")
            config.progress_monitor.phase_finish(phase)
        if self._cannot_build is not None:
            network.state.logger.log(self.trt.ILogger.ERROR, self._cannot_build)
            return False
        flags = sorted(getattr(state, "flags", ()))
        if self._times:
            state.cache.state.text += self._timed() + b"more\n"
        else:
            assert len({"REQUIRE_USER_ALLOCATION", "WEIGHT_STREAMING"} & set(flags)) == 1, "not compatible"
        description = {
            "version": self.trt.__version__,
            "gpu": self._gpu if self._times else None,
            "capabilities": [*getattr(state, "capabilities", {}).values()],
            "profiles": state.profiles,
            "flags": flags,
            "cleared": sorted(getattr(state, "cleared", ())),
            "limits": getattr(state, "limits", {}),
            "zero_points": sorted(
                onnx.TensorProto.DataType.Name(tensor.data_type)
                for tensor in model.graph.initializer
                if tensor.name == "quantize.zero"
            ),
            "graph": network.state.path,
            "tensors": {
                value.name: [mode, _TYPES[value.type.tensor_type.elem_type]]
                for mode, values in (("INPUT", model.graph.input), ("OUTPUT", model.graph.output))
                for value in values
            },
            "weights": weights_of_model(model),
        }
        plan = json.dumps(description).encode()
        return all(writer.write(chunk) == len(chunk) for chunk in (plan[:100], plan[100:]))

    def ICudaEngine__create_engine_inspector(self, engine: Any) -> Any:
        return created(self.trt, "EngineInspector")

    def EngineInspector__get_engine_information(self, inspector: Any, format: Any) -> str:
        assert format.name == "JSON"
        return json.dumps({"Layers": ["a layer"]})

    def _timed(self) -> bytes:
        return f"timed {self.trt.__version__} {self._gpu} ".encode()

    def _memory(self, data: bytes) -> Any:
        memory = created(self.trt, "IHostMemory")
        memory[:] = data
        return memory
