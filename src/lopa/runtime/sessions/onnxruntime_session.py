"""The contract on ONNX Runtime with caches in host memory, for CPUs and for pipeline stages on CUDA devices.

Arrays of standard graphs are bound without copies. Portable graphs target other devices, so their forward documents the
computation and is not tuned: every run allocates new arrays. lopa.runtime.sessions.onnxruntime_graph opens the graph.
"""

from collections.abc import Sequence

import onnxruntime as ort

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import Rows, Statistics, WindowBatch, stored_dtype, window_names
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.contract.portable_form import (
    PAST,
    portable_inputs,
    portable_past,
    rows_from_portable,
    statistics_from_portable,
)
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.denormals import denormals_as_zero
from lopa.runtime.files.stamp import MappedFile
from lopa.runtime.sessions.bound_forward import Array, BoundForward
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.onnxruntime_graph import open_part_graph, quiet_run
from lopa.runtime.sessions.prefix_cache import Prefix, cache_shape_from_manifest
from lopa.runtime.sessions.providers import CPU_PROVIDER

_BFLOAT16_BITS = stored_dtype("bfloat16")
_BFLOAT16_IN_ONNX = 16
"""Value of TensorProto.BFLOAT16."""


def open_session(bundle: Bundle, device: str, *, threads: int | None, exact: bool = False) -> HostSession:
    """Open the bundle's graph on "cpu" or on cores ("cpu:0-3").

    If `threads` is None, one thread runs per named core. Without named cores, ONNX Runtime chooses the number. ONNX
    Runtime's own threads are pinned to the cores. The calling thread counts as one of them, and
    lopa.runtime.sessions.device_worker pins it. `exact` is for verification: see `open_part_graph`.

    Raises BadInputError for other devices, bfloat16 bundles and unusable graphs.
    """
    manifest = bundle.manifest
    part = manifest.dimensions.whole_model
    forward: Forward
    if manifest.dialect == "portable":
        forward = OnnxPortableForward(open_part_graph(bundle, part, device, threads), manifest.rotary)
    else:
        forward = forward_from_bundle(bundle, part, device, threads=threads, exact=exact)
    shape, mapped = cache_shape_from_manifest(manifest), MappedFile(bundle.weights)
    return HostSession(forward, device, shape, mapped, hidden_size=manifest.dimensions.hidden_size)


def forward_from_bundle(
    bundle: Bundle, part: ModelPart, device: str, *, threads: int | None, exact: bool = False
) -> BoundForward:
    """Open the standard graph of `part` in `bundle` on a CPU device or on "cuda:N".

    Raises like `open_session`, and MissingBackendError if the CUDA provider is missing or does not start.
    """
    graph = open_part_graph(bundle, part, device, threads, exact=exact)
    return BoundForward(OnnxRuntimeBinding(graph), bundle.manifest, part)


class OnnxRuntimeBinding:
    """Binding of a graph that ONNX Runtime has opened."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._run_options = quiet_run()
        self._copied: dict[str, ort.OrtValue] | None = {} if session.get_providers()[0] != CPU_PROVIDER else None
        """Inputs that ONNX Runtime copies to a device when they are bound, so that every run binds them. None if the
        provider reads host memory."""

    def handle_of(self, array: Array) -> ort.OrtValue:
        """Return an OrtValue over the array's memory."""
        if array.dtype == _BFLOAT16_BITS:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16_IN_ONNX)
        return ort.OrtValue.ortvalue_from_numpy(array)

    def bind_inputs(self, handles: Sequence[tuple[str, ort.OrtValue]]) -> None:
        """Bind inputs for the next runs."""
        if self._copied is not None:
            self._copied.update(handles)
            return
        for name, value in handles:
            self._binding.bind_ortvalue_input(name, value)

    def bind_outputs(self, handles: Sequence[tuple[str, ort.OrtValue]]) -> None:
        """Bind outputs for the next runs."""
        for name, value in handles:
            self._binding.bind_ortvalue_output(name, value)

    def unbind_inputs(self) -> None:
        """Drop all references to bound inputs."""
        if self._copied is not None:
            self._copied.clear()
        self._binding.clear_binding_inputs()

    def run(self) -> None:
        """Run one forward, with denormals flushed to zero."""
        for name, value in (self._copied or {}).items():
            self._binding.bind_ortvalue_input(name, value)
        with denormals_as_zero():
            self._session.run_with_iobinding(self._binding, self._run_options)

    def close(self) -> None:
        """Free the graph."""
        del self._binding, self._session


class OnnxPortableForward:
    """Forward over an opened portable graph in float32 or float16."""

    def __init__(self, session: ort.InferenceSession, rotary: RotaryAngles | None = None) -> None:
        """Create a forward over `session`, whose graph takes the cosines and sines of `rotary` unless it is None."""
        self._session: ort.InferenceSession | None = session
        self._rotary = rotary
        self._run_options = quiet_run()
        self._outputs = [value.name for value in session.get_outputs()]

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward. The caller owns the returned arrays."""
        assert self._session is not None  # HostSession does not call `run` after close()
        inputs = portable_inputs(batch, prefix.mask, self._rotary) | {PAST: portable_past(prefix.block)}
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, inputs, self._run_options), strict=True))
        branches = batch.input_ids.shape[1]
        rows = tuple(rows_from_portable(outputs[name], branches) for name in window_names(len(prefix.block) // 2))
        return statistics_from_portable(outputs, batch), rows

    def forget_prefix(self) -> None:
        """Do nothing, because a run keeps no reference to its prefix."""

    def close(self) -> None:
        """Free the graph."""
        self._session = None
