"""The contract on OpenVINO, with caches and windows bound from host memory without copies."""

from collections.abc import Sequence
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import stored_dtype
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.openvino.openvino_model import CompiledModel, model_of_part
from lopa.runtime.sessions.bound_forward import Array, BoundForward
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

_BFLOAT16_BITS = stored_dtype("bfloat16")


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:
    """Open the bundle's standard graph on "openvino:CPU", "openvino:GPU.1" and so on. Raises like model_of_part."""
    sizes = bundle.manifest.dimensions
    forward = forward_from_bundle(bundle, sizes.whole_model, device, threads=threads)
    return HostSession(forward, device, cache_shape_from_manifest(bundle.manifest), hidden_size=sizes.hidden_size)


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
    """Open the standard graph of `part` in `bundle`. Raises like model_of_part."""
    model = model_of_part(bundle, part, device, threads)
    return BoundForward(OpenVinoBinding(model), bundle.manifest, part)


class OpenVinoBinding:
    """Binding of a graph that OpenVINO has compiled."""

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self._request = model.compiled.create_infer_request()
        self._empty = [(port.any_name, _empty_tensor(model.openvino, port)) for port in model.compiled.inputs]
        """Empty tensors for all inputs, bound in place of arrays."""

    def handle_of(self, array: Array) -> Any:
        """Return a tensor over the array's memory."""
        openvino = self._model.openvino
        if array.dtype == _BFLOAT16_BITS:
            return openvino.Tensor(array, openvino.Shape(array.shape), openvino.Type.bf16)
        return openvino.Tensor(array, shared_memory=True)

    def bind_inputs(self, handles: Sequence[tuple[str, Any]]) -> None:
        """Bind inputs for the next runs."""
        self._request.wait()
        for name, tensor in handles:
            self._request.set_tensor(name, tensor)

    def bind_outputs(self, handles: Sequence[tuple[str, Any]]) -> None:
        """Bind outputs for the next runs."""
        self.bind_inputs(handles)  # names of inputs and outputs are distinct

    def unbind_inputs(self) -> None:
        """Drop all references to bound inputs."""
        self.bind_inputs(self._empty)

    def run(self) -> None:
        """Run one forward. A signal handler may have interrupted the one before, which every use then waits for."""
        self._request.wait()
        self._request.start_async()  # infer() would build a dictionary of all outputs
        self._request.wait()

    def close(self) -> None:
        """Free the request and the model."""
        del self._request, self._model


def _empty_tensor(openvino: Any, port: Any) -> Any:
    """Return an empty tensor of the input's type, with length 0 in every dynamic axis. Each input has such an axis."""
    shape = [axis.get_length() if axis.is_static else 0 for axis in port.partial_shape]
    return openvino.Tensor(port.element_type, openvino.Shape(shape))
