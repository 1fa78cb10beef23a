"""The contract on ONNX Runtime, with caches and windows bound from host memory: the CPU, and stages on CUDA devices.

Knows how inputs and outputs are bound without copies. Does not know how the graph was opened
(lopa.runtime.sessions.onnxruntime_graph), which requests live, nor what a window means.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from lopa.runtime import contract
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import arrays_of_values, inputs_of_graph, outputs_of_graph
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Rows, Sizes, Statistics, WindowBatch
from lopa.runtime.contract.model_part import HIDDEN, ModelPart, whole_model
from lopa.runtime.contract.stored_floats import stored_dtype
from lopa.runtime.denormals import denormals_as_zero
from lopa.runtime.sessions.host_session import Forward, HostSession
from lopa.runtime.sessions.onnxruntime_graph import graph_of_part, quiet_run
from lopa.runtime.sessions.portable_forward import PortableForward
from lopa.runtime.sessions.prefix_cache import Prefix, cache_shape_from_manifest

Array = npt.NDArray[Any]

_MOST_BUFFERS = 64
"""Sets of views kept: creating one costs more than binding it, and a decode comes back to few sizes."""
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


def forward_from_bundle(bundle: Bundle, part: ModelPart, device: str, *, threads: int | None) -> "OnnxRuntimeForward":
    """Open the graph of `bundle`, which is the standard one of `part`, on a device for `open_session` or "cuda:N".

    Raises as that, and MissingBackendError when ONNX Runtime here has no CUDA provider or it does not start.
    """
    return OnnxRuntimeForward(graph_of_part(bundle, part, device, threads), bundle.manifest, part)


class OnnxRuntimeForward:
    """One forward through ONNX Runtime with every input and output bound to memory that is used again."""

    def __init__(self, session: ort.InferenceSession, manifest: Manifest, part: ModelPart) -> None:
        self._session = session
        self._part = part
        self._binding = session.io_binding()
        self._run_options = quiet_run()
        prefix = {contract.PREFIX_MASK, *part.past_names}
        self._inputs = {name: form for name, form in inputs_of_graph(manifest, part).items() if name not in prefix}
        self._outputs = outputs_of_graph(manifest, part)
        self._memory: dict[str, Array] = {}
        """One flat array for each input and output but the prefix, as large as the largest window so far needed it."""
        self._buffers: dict[Sizes, _Buffers] = {}
        """Views of `_memory` for the sizes seen since it last grew; only those of the last run hold its results."""
        self._bound_window: Sizes | None = None
        self._bound_prefix: Prefix | None = None

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Forward.run: one call for all branches of all requests. The rows are overwritten by the next run."""
        arrays = self.run_part(batch, None, prefix)
        return self.statistics_from_outputs(arrays), tuple(arrays[name] for name in self._part.window_names)

    def run_part(self, batch: WindowBatch, hidden: Array | None, prefix: Prefix) -> dict[str, Array]:
        """All outputs by name, in memory that the next run overwrites.

        `prefix` has the arrays of this part's layers; `hidden` as HIDDEN for any but the first.
        """
        requests, branches, window = batch.input_ids.shape
        # The prefix is bound by itself, and rows are wanted of the last part alone.
        wanted = batch.logits_index.shape[2] if self._part.is_last else 0
        arrays = self._bound_arrays(Sizes(requests, branches, window, prefix=0, wanted=wanted))
        if prefix is not self._bound_prefix:
            self._bind_prefix(prefix)
        if hidden is None:
            arrays[contract.INPUT_IDS][...] = batch.input_ids
        else:
            arrays[HIDDEN][...] = hidden
        arrays[contract.POSITION_IDS][...] = batch.position_ids
        arrays[contract.WINDOW_MASK][...] = batch.window_mask
        if self._part.is_last:
            arrays[contract.LOGITS_INDEX][...] = batch.logits_index
            arrays[contract.TEMPERATURE][...] = batch.temperature
        with denormals_as_zero():
            self._session.run_with_iobinding(self._binding, self._run_options)
        return arrays

    def statistics_from_outputs(self, arrays: dict[str, Array]) -> Statistics:
        """Copies of the statistics among what `run_part` of a last part gave."""
        return Statistics(
            topk_ids=arrays[contract.TOPK_IDS].copy(),
            topk_logprobs=arrays[contract.TOPK_LOGPROBS].copy(),
            entropy=arrays[contract.ENTROPY].copy(),
            logits=arrays[contract.LOGITS].copy() if contract.LOGITS in self._outputs else None,
        )

    def forget_prefix(self) -> None:
        """Unbind all inputs, so that a released cache is freed."""
        self._binding.clear_binding_inputs()
        self._bound_window = None
        self._bound_prefix = None

    def close(self) -> None:
        """Free the graph, the bindings and their memory."""
        del self._binding, self._session
        self._memory.clear()
        self._buffers.clear()
        self._bound_prefix = None

    def _bound_arrays(self, sizes: Sizes) -> dict[str, Array]:
        """The bound arrays of these sizes, by the names of the contract: all inputs and outputs but the prefix."""
        if sizes not in self._buffers:
            self._add_buffers(sizes)
        buffers = self._buffers[sizes]
        if sizes != self._bound_window:
            self._bound_window = None  # until all are bound
            for name, value in buffers.inputs:
                self._binding.bind_ortvalue_input(name, value)
            for name, value in buffers.outputs:
                self._binding.bind_ortvalue_output(name, value)
            self._bound_window = sizes
        return buffers.arrays

    def _add_buffers(self, sizes: Sizes) -> None:
        self._bound_window = None  # its views may go
        inputs, outputs = arrays_of_values(self._inputs, sizes), arrays_of_values(self._outputs, sizes)
        both = inputs | outputs
        if len(self._buffers) == _MOST_BUFFERS:
            self._buffers.clear()
        for name, form in both.items():
            size = math.prod(form.shape)
            if name not in self._memory or self._memory[name].size < size:
                self._memory[name] = np.empty(size, form.dtype)
                self._buffers.clear()  # views of the smaller memory would keep it
        arrays = {name: self._memory[name][: math.prod(form.shape)].reshape(form.shape) for name, form in both.items()}
        values = {name: _value_of(array) for name, array in arrays.items()}
        self._buffers[sizes] = _Buffers(
            arrays, [(name, values[name]) for name in inputs], [(name, values[name]) for name in outputs]
        )

    def _bind_prefix(self, prefix: Prefix) -> None:
        names = [contract.PREFIX_MASK, *self._part.past_names]
        for name, array in zip(names, (prefix.mask, *prefix.arrays), strict=True):
            self._binding.bind_ortvalue_input(name, _value_of(array))
        self._bound_prefix = prefix


@dataclass(frozen=True, eq=False)
class _Buffers:
    """Everything bound for one window but the prefix: the arrays, and the forward's handles of the same memory."""

    arrays: dict[str, Array]
    inputs: list[tuple[str, ort.OrtValue]]
    outputs: list[tuple[str, ort.OrtValue]]


def _value_of(array: Array) -> ort.OrtValue:
    """The forward's handle of the array's own memory."""
    if array.dtype == _BFLOAT16_BITS:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, _BFLOAT16_IN_ONNX)
    return ort.OrtValue.ortvalue_from_numpy(array)
