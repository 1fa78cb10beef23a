"""A stand-in for TensorRT's runtime. It opens plans of stand_in_tensorrt.py and enforces the documented rules.

Plans of another version or GPU are rejected. Shapes must fit the context's profile and be set before a forward. All
inputs and outputs need an address, and a context needs activation memory. A context with a captured graph must not
change, nor be captured again. A capture needs a plain forward after setting shapes. Contexts take GPU memory, and a
weight budget cannot change while one exists. A plan without weights needs all of them, with the names and types of the
built graph. ONNX Runtime computes the results on the bundle's graph when the stand-in stream runs.

An engine of TensorRT for RTX opens on every GPU that it was built for. A runtime config creates its contexts, with
kernels for one or many shapes and a cache tied to the GPU.
"""

# ruff: noqa: ARG002, N802 - names and arguments are those of the real methods

import json
import math
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from tests.runtime.cuda.stand_in_graphs import StandInGraphs
from tests.runtime.tensorrt.recorded_api import created, methods_by_name

_NUMPY = {"INT64": np.int64, "FLOAT": np.float32, "BOOL": np.bool_, "HALF": np.float16}
SCRATCH = 4096
"""Bytes of activation memory of profile 0. Each further profile needs one more."""
PERSISTENT = 1 << 20
"""Bytes that a context keeps on the GPU."""
AUTOMATIC = 64 << 20
"""Weight budget that TensorRT determines, in bytes."""
_RTX_CAPABILITY = 80


class StandInEngines:
    """Implementation of the runtime's methods. `violations` lists broken rules that TensorRT leaves undefined."""

    def __init__(self, gpu: str, cuda: StandInGraphs | None, *, rtx: bool) -> None:
        self.trt = ModuleType("tensorrt")
        self.gpu = gpu
        self.capability = "9.0"
        self._cuda = cuda
        self._rtx = rtx
        self._contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self.violations: list[str] = []
        self.forwards: list[tuple[int, str]] = []
        """Profile and kind (plain or captured) of every forward that a context was asked to run."""
        self.fails: set[str] = set()
        """Methods, as "Class.method", that fail."""
        self.cannot_be_captured = False
        self.corrupt: Callable[[int, str, Any], Any] = lambda _profile, _name, array: array
        """Transformation of a profile's output, to simulate wrong results."""
        self.budgets: list[int] = []
        """Weight budgets that were set."""
        self.compiled: set[tuple[int, str]] = set()
        """Compiled kernels: profile, and one shape (EAGER) or many (LAZY)."""

    @property
    def behaviours(self) -> dict[str, Any]:
        return {
            "ICudaEngine.num_io_tensors": lambda each: len(each.state.tensors),
            "ICudaEngine.num_optimization_profiles": lambda each: len(each.state.profiles),
            "ICudaEngine.get_tensor_name": lambda each, index: list(each.state.tensors)[index],
            "ICudaEngine.get_weight_streaming_automatic_budget": lambda _engine: AUTOMATIC,
            "ICudaEngine.get_device_memory_size_for_profile_v2": lambda _engine, profile_index: SCRATCH + profile_index,
            **methods_by_name(self, rtx=self._rtx),
        }

    def Runtime____init__(self, runtime: Any, logger: Any) -> None:
        runtime.state.logger = logger
        runtime.engine_host_code_allowed = False

    def Runtime__deserialize_cuda_engine(self, runtime: Any, stream_reader_v2: Any) -> Any:
        """Open a plan, read in chunks. Return None and log a message if TensorRT would reject it."""
        assert stream_reader_v2.seek(0, self.trt.SeekPosition.END)
        assert stream_reader_v2.seek(0, self.trt.SeekPosition.SET)
        data = b""
        while chunk := stream_reader_v2.read(1 << 40, 0):
            data += chunk
        try:
            plan = json.loads(data)
        except ValueError:
            return self._reject(runtime, "magic tag does not match")
        if plan["version"] != self.trt.__version__ or not self._opens_here(plan):
            return self._reject(runtime, f"the engine plan file is of {plan['version']} for {plan['gpu']}")
        if "VERSION_COMPATIBLE" in plan["flags"] and not runtime.engine_host_code_allowed:
            return self._reject(runtime, "host code is not allowed")
        engine = created(self.trt, "ICudaEngine")
        engine.state = SimpleNamespace(
            tensors=plan["tensors"],
            profiles=plan["profiles"],
            flags=plan["flags"],
            graph=plan["graph"],
            weights=plan["weights"],
            logger=runtime.state.logger,
            has_weights="STRIP_PLAN" not in plan["flags"],
        )
        return engine

    def _opens_here(self, plan: dict[str, Any]) -> bool:
        if not self._rtx:
            return bool(plan["gpu"] == self.gpu)
        here = "SM" + self.capability.replace(".", "")
        return here in plan["capabilities"] if plan["capabilities"] else int(here[2:]) >= _RTX_CAPABILITY

    def ICudaEngine__weight_streaming_budget_v2__set(self, engine: Any, value: int) -> None:
        assert "WEIGHT_STREAMING" in engine.state.flags
        assert not [each for each in self._contexts if each.state.engine is engine], "a budget set while contexts exist"
        self.budgets.append(value)

    def ICudaEngine__get_tensor_mode(self, engine: Any, name: str) -> Any:
        return getattr(self.trt.TensorIOMode, engine.state.tensors[name][0])

    def ICudaEngine__get_tensor_dtype(self, engine: Any, name: str) -> Any:
        return getattr(self.trt.DataType, engine.state.tensors[name][1])

    def ICudaEngine__get_tensor_profile_shape(
        self, engine: Any, name: str, profile_index: int
    ) -> list[tuple[int, ...]]:
        assert engine.state.tensors[name][0] == "INPUT"
        return [tuple(shape) for shape in engine.state.profiles[profile_index][name]]

    def ICudaEngine__create_execution_context(
        self, engine: Any, strategy: Any = None, runtime_config: Any = None
    ) -> Any:
        if self._fails("ICudaEngine.create_execution_context", engine):
            return None
        assert (runtime_config is not None) == self._rtx, "kernels would not be cached"
        if runtime_config is not None:
            strategy = runtime_config.state.strategy
            assert runtime_config.state.cache is not None, "kernels would not be cached"
        assert strategy.name == "USER_MANAGED", "contexts share their memory"
        assert engine.state.has_weights, "the weights were not refitted"
        assert "WEIGHT_STREAMING" not in engine.state.flags or self.budgets, "no weight budget before the first context"
        context = created(self.trt, "IExecutionContext")
        context.state = SimpleNamespace(
            engine=engine,
            config=runtime_config,
            profile=None,
            shapes={},
            addresses={},
            scratch=None,
            settled=False,
            logger=engine.state.logger,
        )
        self._contexts.add(context)
        if self._cuda is not None:
            weakref.finalize(context, self._cuda.take(PERSISTENT)).atexit = False
        return context

    def ICudaEngine__create_runtime_config(self, engine: Any) -> Any:
        config = created(self.trt, "IRuntimeConfig")
        config.state = SimpleNamespace(engine=engine, strategy=None, cache=None)
        return config

    def IRuntimeConfig__create_runtime_cache(self, config: Any) -> Any:
        cache = created(self.trt, "IRuntimeCache")
        cache.state = SimpleNamespace(kernels=set())
        return cache

    def IRuntimeConfig__set_runtime_cache(self, config: Any, cache: Any) -> bool:
        config.state.cache = cache
        return True

    def IRuntimeConfig__set_execution_context_allocation_strategy(self, config: Any, strategy: Any) -> None:
        config.state.strategy = strategy

    def IRuntimeCache__serialize(self, cache: Any) -> Any:
        memory = created(self.trt, "IHostMemory")
        memory[:] = json.dumps([self.trt.__version__, self.gpu, sorted(cache.state.kernels)]).encode()
        return memory

    def IRuntimeCache__deserialize(self, cache: Any, blob: bytes) -> bool:
        """Return False for an invalid cache, and for one of another GPU or version."""
        try:
            version, gpu, kernels = json.loads(bytes(blob))
        except ValueError:
            return False
        if (version, gpu) != (self.trt.__version__, self.gpu):
            return False
        cache.state.kernels = {(profile, kind) for profile, kind in kernels}
        return True

    def IExecutionContext__set_device_memory(self, context: Any, memory: int, size: int) -> None:
        self._require_no_graph(context, "memory")
        assert self._cuda is not None
        self._cuda.view(memory, size)
        context.state.scratch = (memory, size)

    def IExecutionContext__set_optimization_profile_async(
        self, context: Any, profile_index: int, stream_handle: int
    ) -> bool:
        engine = context.state.engine.state
        if self._fails("IExecutionContext.set_optimization_profile_async", context):
            return False
        if not 0 <= profile_index < len(engine.profiles):
            return self._log_failure(context, f"there is no profile {profile_index}")
        self._require_no_graph(context, "profile")
        assert self._cuda is not None
        self._cuda.enqueue(stream_handle, lambda: None, ())
        context.state.profile, context.state.shapes, context.state.settled = profile_index, {}, False
        return True

    def IExecutionContext__set_input_shape(self, context: Any, name: str, shape: tuple[int, ...]) -> bool:
        state = context.state
        if self._fails("IExecutionContext.set_input_shape", context):
            return False
        lower, _, upper = state.engine.state.profiles[state.profile][name]
        if len(shape) != len(lower) or any(
            not low <= size <= high for low, size, high in zip(lower, shape, upper, strict=True)
        ):
            return self._log_failure(context, f"{name} {shape} is not between {min} and {max}")
        self._require_no_graph(context, "shape")
        state.shapes[name], state.settled = tuple(shape), False
        return True

    def IExecutionContext__set_tensor_address(self, context: Any, name: str, memory: int) -> bool:
        if self._fails("IExecutionContext.set_tensor_address", context):
            return False
        if name not in context.state.engine.state.tensors:
            return self._log_failure(context, f"there is no {name}")
        self._require_no_graph(context, "address")
        context.state.addresses[name] = memory
        return True

    def IExecutionContext__execute_async_v3(self, context: Any, stream_handle: int) -> bool:
        state, cuda = context.state, self._cuda
        assert cuda is not None
        tensors = state.engine.state.tensors
        if self._fails("IExecutionContext.execute_async_v3", context):
            return False
        inputs = {name for name, (mode, _) in tensors.items() if mode == "INPUT"}
        if state.profile is None or set(state.shapes) != inputs:
            return self._log_failure(context, f"no shape of {sorted(inputs - set(state.shapes))}")
        if set(state.addresses) != set(tensors):
            return self._log_failure(context, f"no address of {sorted(set(tensors) - set(state.addresses))}")
        if state.scratch is None or state.scratch[1] < SCRATCH + state.profile:
            return self._log_failure(context, "too little memory for activations")
        capturing = cuda.is_capturing(stream_handle)
        if capturing:
            if self._rtx and "REQUIRE_USER_ALLOCATION" not in state.engine.state.flags:
                self.violations.append("an engine that may allocate while it runs was captured")
            if self.cannot_be_captured:
                cuda.invalidate_capture(stream_handle)
                return self._log_failure(context, "a layer waits for the stream")
            if not state.settled:
                self.violations.append("captured without a plain forward after a shape was set")
            if self._graphs_of(context):
                self.violations.append("a context was captured again while its graph exists")
        if state.config is not None and not state.settled:
            self._make_kernels(context)
        state.settled = True
        self.forwards.append((state.profile, "captured" if capturing else "plain"))
        cuda.enqueue(
            stream_handle, _Forward(self, context, captured=capturing), (*state.addresses.values(), state.scratch[0])
        )
        return True

    def Refitter____init__(self, refitter: Any, engine: Any, logger: Any) -> None:
        refitter.state.engine = engine
        refitter.state.missing = list(engine.state.weights)

    def OnnxParserRefitter____init__(self, parser: Any, refitter: Any, logger: Any) -> None:
        parser.state.refitter = refitter

    def OnnxParserRefitter__refit_from_bytes(self, parser: Any, model: bytes, path: str | None = None) -> bool:
        """Return False unless every weight of the plan is in the model, with the same type and shape."""
        engine, loaded = parser.state.refitter.state.engine, onnx.load_model_from_string(model)
        assert "REFIT_IDENTICAL" in engine.state.flags
        outside = {
            entry.value for each in loaded.graph.initializer for entry in each.external_data if entry.key == "location"
        }
        assert path is not None or not outside
        if not all(Path(path or "").with_name(name).is_file() for name in outside):
            return self._log_failure(engine, "external data is missing")
        found = weights_of_model(loaded)
        parser.state.refitter.state.missing = [
            name for name, form in engine.state.weights.items() if found.get(name) != form
        ]
        return not parser.state.refitter.state.missing or self._log_failure(engine, "weights are missing")

    def Refitter__get_missing_weights(self, refitter: Any) -> list[str]:
        return list(refitter.state.missing)

    def Refitter__refit_cuda_engine(self, refitter: Any) -> bool:
        refitter.state.engine.state.has_weights = not refitter.state.missing
        return not refitter.state.missing

    def compute(self, forward: "_Forward") -> None:
        """Compute a forward when the stream reaches it, using only its own memory."""
        cuda, state = self._cuda, forward.state
        assert cuda is not None
        now = forward.context.state
        if forward.captured and (now.shapes, now.addresses) != (state.shapes, state.addresses):
            self.violations.append("a graph ran after its context got another shape or address")
        rng = np.random.default_rng(len(self.forwards))
        scratch = cuda.view(*state.scratch)
        scratch[:] = rng.integers(256, size=scratch.size, dtype=np.uint8)
        tensors = state.engine.state.tensors
        inputs = {}
        for name, shape in state.shapes.items():
            dtype = np.dtype(_NUMPY[tensors[name][1]])
            data = cuda.view(state.addresses[name], math.prod(shape) * dtype.itemsize)
            inputs[name] = np.frombuffer(data.tobytes(), dtype).reshape(shape)
        graph = _graph(state.engine.state.graph)
        names = [name for name, (mode, _) in tensors.items() if mode == "OUTPUT"]
        for name, right in zip(names, graph.run(names, inputs), strict=True):
            array = self.corrupt(state.profile, name, right)
            target = cuda.view(state.addresses[name], array.nbytes)
            target[:] = np.frombuffer(array.tobytes(), np.uint8)

    def _make_kernels(self, context: Any) -> None:
        state = context.state
        kernel = (state.profile, state.config.dynamic_shapes_kernel_specialization_strategy.name)
        if kernel not in state.config.state.cache.state.kernels:
            self.compiled.add(kernel)
            state.config.state.cache.state.kernels.add(kernel)

    def _graphs_of(self, context: Any) -> list[Any]:
        """Return the graphs captured from the context and not destroyed."""
        assert self._cuda is not None
        return [
            graph
            for graph in self._cuda.graphs
            if any(isinstance(work, _Forward) and work.context is context for work, _ in graph.works)
        ]

    def _require_no_graph(self, context: Any, what: str) -> None:
        if self._graphs_of(context):
            self.violations.append(f"the {what} of a context was set while its graph exists")

    def _fails(self, method: str, thing: Any) -> bool:
        if method not in self.fails:
            return False
        return not self._log_failure(thing, "out of memory")

    def _log_failure(self, thing: Any, message: str) -> bool:
        thing.state.logger.log(self.trt.ILogger.ERROR, message)
        return False

    def _reject(self, runtime: Any, message: str) -> None:
        runtime.state.logger.log(self.trt.ILogger.ERROR, message)


class _Forward:
    """One forward in a queue or a graph, with the state of its context at that time."""

    def __init__(self, engines: StandInEngines, context: Any, *, captured: bool) -> None:
        self._engines = engines
        self.captured = captured
        self.context = context
        state = context.state
        self.state = SimpleNamespace(
            engine=state.engine,
            profile=state.profile,
            scratch=state.scratch,
            shapes=dict(state.shapes),
            addresses=dict(state.addresses),
        )

    def __call__(self) -> None:
        self._engines.compute(self)


def weights_of_model(model: onnx.ModelProto) -> dict[str, list[Any]]:
    """Return type and axes of every initializer, by name."""
    return {each.name: [each.data_type, *each.dims] for each in model.graph.initializer}


@cache
def _graph(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
