"""A plan deserialized on the current CUDA device and compared with its description, and its execution contexts.

All contexts share the weights of the engine.
"""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from lopa.runtime.accelerator.device_memory import Buffer
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import arrays_of_values, inputs_of_graph, outputs_of_graph
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.cuda.driver import CudaDevice
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.tensorrt.contexts import contexts_of_engine
from lopa.runtime.tensorrt.plan_file import check_file, engine_from_plan
from lopa.runtime.tensorrt.profiles import profiles_of_buckets
from lopa.runtime.tensorrt.tensorrt_library import last_messages, messages_logger
from lopa.runtime.tensorrt.tensorrt_manifest import MODEL_NAME, PLAN_NAME, StoredTensorRTEngine

_SHOWN_WEIGHTS = 5
_TYPES = {"int64": "INT64", "bool": "BOOL", "float32": "FLOAT", "float16": "HALF", "bfloat16": "BF16"}
"""Members of TensorRT's DataType by the names in manifests."""


class TensorRTPlan:
    """An opened TensorRT plan. Drop its contexts before `close`."""

    def __init__(self, trt: ModuleType, found: StoredTensorRTEngine, bundle: Bundle, device: CudaDevice) -> None:
        """Open the plan. Raises BadInputError if TensorRT rejects it, or if it differs from engine.json."""
        self._trt = trt
        self._found = found
        self._messages = messages_logger(trt)
        self._runtime, self._engine = engine_from_plan(trt, found, self._messages)
        if self._engine is None:
            raise self._plan_error("TensorRT cannot open it")
        if found.engine.flags.strip_weights:
            self._refit_weights(bundle)
        for received in _differences(self._engine, self._trt, found, bundle.manifest):
            raise self._plan_error(received)
        self._contexts = contexts_of_engine(trt, self._engine, found, device)

    @property
    def streams_weights(self) -> bool:
        """True if some weights may stay in host memory."""
        return self._found.engine.flags.weight_streaming

    def stream_all_weights(self) -> None:
        """Move all weights that can be streamed off the GPU. Call it before creating contexts."""
        self._engine.weight_streaming_budget_v2 = 0

    def reserve_memory(self, size: int) -> None:
        """Keep as many weights on the GPU as fit in free memory minus `size` bytes. There must be no context."""
        automatic = self._engine.get_weight_streaming_automatic_budget()
        self._engine.weight_streaming_budget_v2 = max(0, automatic - size)

    @property
    def scratch_size(self) -> int:
        """Bytes of activation memory that a forward in any profile needs.

        It depends on how many weights are streamed.
        """
        profiles = range(self._engine.num_optimization_profiles)
        return max(1, *(int(self._engine.get_device_memory_size_for_profile_v2(each)) for each in profiles))

    def new_context(self, profile: int, stream: int, scratch: Buffer, *, one_shape: bool) -> "ProfileContext":
        """Return a context with a fixed profile that runs on `stream` only. `one_shape` means that its shapes are set
        once.

        `scratch` has at least `scratch_size` bytes. Contexts that never run at the same time may share it. Raises
        EngineFailedError.
        """
        context = self._contexts.new(one_shape=one_shape)
        if context is None:
            raise self.failed(f"create_execution_context for profile {profile}")
        context.set_device_memory(scratch.address, scratch.size)
        if not context.set_optimization_profile_async(profile, stream):
            raise self.failed(f"set_optimization_profile_async({profile})")
        return ProfileContext(self, context, stream)

    def failed(self, call: str) -> EngineFailedError:
        """Return the error for a failed call of TensorRT."""
        return EngineFailedError(
            f"TensorRT: {call} failed" + last_messages(self._messages),
            expected="success",
            remedy="check with nvidia-smi that the GPU is idle and has free memory; if it fails again, "
            f"{self._found.engine.target.rebuild}",
        )

    def close(self) -> None:
        """Save the kernel cache, and free the weights."""
        self._contexts.keep()
        self._engine = self._runtime = None

    def _refit_weights(self, bundle: Bundle) -> None:
        """Refit the bundle's weights into a plan that was built without them.

        The weights are read through the graph that was built. With int8 or fp8 products, the built graph's names and
        types differ from the bundle's graph.
        """
        model = check_file(self._found, MODEL_NAME).read_bytes()
        refitter = self._trt.Refitter(self._engine, self._messages)
        parser = self._trt.OnnxParserRefitter(refitter, self._messages)
        if not parser.refit_from_bytes(model, str(bundle.graph)) or not refitter.refit_cuda_engine():
            missing = refitter.get_missing_weights()
            shown = [*missing[:_SHOWN_WEIGHTS], *(["..."] if len(missing) > _SHOWN_WEIGHTS else [])]
            raise self._plan_error(
                f"cannot load the weights of {bundle.path} into it"
                + (f", {len(missing)} are missing: {', '.join(shown)}" if missing else "")
            )

    def _plan_error(self, received: str) -> BadInputError:
        return BadInputError(
            f"{self._found.folder / PLAN_NAME}: {received}" + last_messages(self._messages),
            expected="a plan built from this bundle for this GPU, and enough GPU memory",
            remedy=f"see docs/how-to/engines.md, Troubleshooting, or {self._found.engine.target.rebuild}",
        )


class ProfileContext:
    """An execution context of TensorRT in one profile. Shapes and addresses stay set between forwards."""

    def __init__(self, plan: TensorRTPlan, context: Any, stream: int) -> None:
        self._plan = plan
        self._context = context
        self._stream = stream
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._addresses: dict[str, int] = {}

    def set_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Set the shapes of all inputs. Raises EngineFailedError if the profile does not allow them."""
        for name, shape in shapes.items():
            if self._shapes.get(name) != shape:
                if not self._context.set_input_shape(name, shape):
                    raise self._plan.failed(f"set_input_shape({name!r}, {shape})")
                self._shapes[name] = shape

    def set_addresses(self, addresses: Mapping[str, int]) -> None:
        """Set the addresses of all inputs and outputs."""
        for name, address in addresses.items():
            if self._addresses.get(name) != address:
                if not self._context.set_tensor_address(name, address):
                    raise self._plan.failed(f"set_tensor_address({name!r})")
                self._addresses[name] = address

    def enqueue(self) -> None:
        """Enqueue a forward on the stream. Raises EngineFailedError."""
        if not self._context.execute_async_v3(self._stream):
            raise self._plan.failed("execute_async_v3")


def _differences(engine: Any, trt: ModuleType, found: StoredTensorRTEngine, manifest: Manifest) -> Iterator[str]:
    """Yield every difference between the plan and its description."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    whole = whole_model(manifest.dimensions.layers)
    inputs = inputs_of_graph(manifest, whole)
    forms = inputs | outputs_of_graph(manifest, whole)
    if set(names) != set(forms):
        yield f"it has the inputs and outputs {sorted(names)}"
        return
    for name in names:
        mode = trt.TensorIOMode.INPUT if name in inputs else trt.TensorIOMode.OUTPUT
        expected_type = _TYPES[forms[name].type]
        if engine.get_tensor_mode(name) != mode or engine.get_tensor_dtype(name) != getattr(
            trt.DataType, expected_type
        ):
            yield f"{name} is not an {mode.name.lower()} of type {expected_type}"
    profiles = profiles_of_buckets(found.engine.buckets, found.engine.prefill)
    if engine.num_optimization_profiles != len(profiles):
        yield f"it has {engine.num_optimization_profiles} profiles, but engine.json has {len(profiles)}"
        return
    for number, profile in enumerate(profiles):
        shapes = [arrays_of_values(inputs, sizes) for sizes in (profile.min, profile.best, profile.max)]
        for name in inputs:
            actual = [tuple(shape) for shape in engine.get_tensor_profile_shape(name, number)]
            if actual != [arrays[name].shape for arrays in shapes]:
                yield f"{name} has the shapes {actual} in profile {number}, unlike engine.json"
