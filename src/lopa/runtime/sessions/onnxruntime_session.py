"""The contract on ONNX Runtime, with caches and windows bound from host memory: the CPU, and stages on CUDA devices.

Knows how ONNX Runtime binds an array without a copy. Does not know how the graph was opened
(lopa.runtime.sessions.onnxruntime_graph), which requests live, nor what a forward's arrays are.
"""

from collections.abc import Sequence

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.denormals import denormals_as_zero
from lopa.runtime.sessions.bound_forward import Array, BoundForward
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.onnxruntime_graph import graph_of_part, quiet_run
from lopa.runtime.sessions.portable_forward import PortableForward
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest

_BFLOAT16_BITS = stored_dtype("bfloat16")
_BFLOAT16_IN_ONNX = 16
"""TensorProto.BFLOAT16"""


def open_session(bundle: Bundle, device: str, *, threads: int | None) -> HostSession:
    """Open the bundle's graph on "cpu" or cores ("cpu:0-3"); `threads` None leaves their number to ONNX Runtime, or is
    one for each core named.

    ONNX Runtime's own threads stay on the cores; the thread that calls counts as one of them, and is the caller's to
    keep there (lopa.runtime.parallel.session_thread does).

    Raises BadInputError for another device, a bfloat16 bundle or a graph that cannot be used.
    """
    manifest = bundle.manifest
    part = whole_model(manifest.dimensions.layers)
    forward: Forward
    if manifest.dialect == "portable":
        forward = PortableForward(graph_of_part(bundle, part, device, threads))
    else:
        forward = forward_from_bundle(bundle, part, device, threads=threads)
    return HostSession(forward, device, cache_shape_from_manifest(manifest))


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> BoundForward:
    """Open the graph of `bundle`, which is the standard one of `part`, on a device for `open_session` or "cuda:N".

    Raises as that, and MissingBackendError when ONNX Runtime here has no CUDA provider or it does not start.
    """
    return BoundForward(OnnxRuntimeBinding(graph_of_part(bundle, part, device, threads)), bundle.manifest, part)


class OnnxRuntimeBinding:
    """The Binding of a graph that ONNX Runtime has opened."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._run_options = quiet_run()

    def handle_of(self, array: Array) -> ort.OrtValue:
        """Binding.handle_of."""
        if array.dtype == _BFLOAT16_BITS:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16_IN_ONNX)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def bind_inputs(self, handles: Sequence[tuple[str, ort.OrtValue]]) -> None:
        """Binding.bind_inputs."""
        for name, value in handles:
            self._binding.bind_ortvalue_input(name, value)

    def bind_outputs(self, handles: Sequence[tuple[str, ort.OrtValue]]) -> None:
        """Binding.bind_outputs."""
        for name, value in handles:
            self._binding.bind_ortvalue_output(name, value)

    def unbind_inputs(self) -> None:
        """Binding.unbind_inputs."""
        self._binding.clear_binding_inputs()

    def run(self) -> None:
        """Binding.run."""
        with denormals_as_zero():
            self._session.run_with_iobinding(self._binding, self._run_options)

    def close(self) -> None:
        """Binding.close."""
        del self._binding, self._session
