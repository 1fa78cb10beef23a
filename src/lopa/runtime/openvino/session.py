"""The contract on OpenVINO, with caches and windows bound from host memory.

Knows how OpenVINO binds an array without a copy. Does not know how the graph was compiled
(lopa.runtime.openvino.model), which rounding is the fastest (lopa.runtime.openvino.choice), which requests live, nor
what a forward's arrays are.
"""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.openvino.choice import RoundingChoice, choice_from_sessions
from lopa.runtime.openvino.device import device_from_name
from lopa.runtime.openvino.model import CompiledModel, devices_to_choose_from, model_of_part
from lopa.runtime.sessions.bound_forward import Array, BoundForward
from lopa.runtime.sessions.host_session import HostSession
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

_BFLOAT16_BITS = stored_dtype("bfloat16")
_LOG = logging.getLogger(__name__)


class OpenVinoSession(HostSession):
    """A HostSession that says why it rounds as it does."""

    choice: RoundingChoice | None = None
    """By what figures `device` was taken where "openvino:NAME:auto" was asked for, otherwise None."""


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> OpenVinoSession:
    """Open the bundle's standard graph on "openvino:CPU", "openvino:GPU.1" and so on; raises as model_of_part.

    "openvino:CPU:auto" opens it with every rounding that there is, times them, and keeps one, whose device is named
    after what was kept.
    """
    if device_from_name(device).rounding == "auto":
        return _fastest_session(bundle, device, threads)
    manifest = bundle.manifest
    forward = forward_from_bundle(bundle, whole_model(manifest.dimensions.layers), device, threads=threads)
    return OpenVinoSession(forward, device, cache_shape_from_manifest(manifest))


def _fastest_session(bundle: Bundle, device: str, threads: int | None) -> OpenVinoSession:
    with ExitStack() as opened:
        sessions: dict[str, OpenVinoSession] = {}
        for name in devices_to_choose_from(bundle, device):
            sessions[name] = open_session(bundle, name, threads=threads)
            opened.callback(sessions[name].close)
        choice = choice_from_sessions(sessions, bundle.manifest)
        _LOG.info("device %s computes as %s", device, choice)
        kept = sessions.pop(choice.device)
        kept.choice = choice
        opened.pop_all()
    for other in sessions.values():
        other.close()
    return kept


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
    """Open the graph of `bundle`, which is the standard one of `part`; raises as model_of_part."""
    model = model_of_part(bundle, part, device, threads)
    return BoundForward(OpenVinoBinding(model), bundle.manifest, part)


class OpenVinoBinding:
    """The Binding of a graph that OpenVINO has compiled."""

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self._request = model.compiled.create_infer_request()
        self._nothing = [(port.any_name, _without_elements(model.openvino, port)) for port in model.compiled.inputs]
        """For every input what stands for no array."""

    def handle_of(self, array: Array) -> Any:
        """Binding.handle_of."""
        openvino = self._model.openvino
        if array.dtype == _BFLOAT16_BITS:
            return openvino.Tensor(array, openvino.Shape(array.shape), openvino.Type.bf16)
        return openvino.Tensor(array, shared_memory=True)

    def bind_inputs(self, handles: Sequence[tuple[str, Any]]) -> None:
        """Binding.bind_inputs."""
        for name, tensor in handles:
            self._request.set_tensor(name, tensor)

    def bind_outputs(self, handles: Sequence[tuple[str, Any]]) -> None:
        """Binding.bind_outputs."""
        self.bind_inputs(handles)  # names of inputs and outputs are distinct

    def unbind_inputs(self) -> None:
        """Binding.unbind_inputs."""
        self.bind_inputs(self._nothing)

    def run(self) -> None:
        """Binding.run."""
        self._request.start_async()  # infer() would make a dictionary of all outputs
        self._request.wait()

    def close(self) -> None:
        """Binding.close."""
        del self._request, self._model


def _without_elements(openvino: Any, port: Any) -> Any:
    """A tensor of the input's type in which every dynamic axis is 0; each input has such an axis."""
    shape = [axis.get_length() if axis.is_static else 0 for axis in port.partial_shape]
    return openvino.Tensor(port.element_type, openvino.Shape(shape))
