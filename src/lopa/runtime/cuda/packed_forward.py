"""Forwards over packed rows by ONNX Runtime's CUDA provider, and their memory, on the thread that opened it.

The rows and the sampled rows of a forward are padded to a few numbers. For two such numbers and a slot, the first
forward is captured as a CUDA graph, and later ones replay it. Lengths, masks and addresses of caches are data.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lopa.runtime.accelerator.device_memory import BufferSet
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.graph_signature import (
    ArrayForm,
    ValueForm,
    arrays_of_lengths,
    inputs_of_twin,
    outputs_of_twin,
)
from lopa.runtime.contract import (
    ATTENTION_SCRATCH,
    ATTENTION_WORK,
    CACHE,
    NEXT_SOFT_EMBEDDINGS,
    SOFT_EMBEDDINGS,
    stored_dtype,
    window_names,
)
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import CudaOperators
from lopa.runtime.cuda.fused_weights import fused_weights
from lopa.runtime.cuda.provider_session import opened_for_graphs
from lopa.runtime.cuda.row_kernel import RowKernel, RowStrides
from lopa.runtime.cuda_kernels.attention_tasks import CHUNK_ROWS
from lopa.runtime.sessions.prefix_cache import CacheShape

ROWS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of rows, and of sampled rows, that forwards are padded to. A product takes about the same time for all
numbers up to a multiple of its tile of 64 to 256 rows (docs/measurements/gpu.md)."""
MAX_ROWS = ROWS[-1]
"""Most rows of a forward that is captured. One with more is not padded and runs node by node."""
_ALIGNMENT = 256
"""Alignment of arrays in a block, in bytes."""
_LIST_BYTES = 1 << 21
"""Bytes of a usual slot for the attention's lists and a table of copies. MAX_ROWS rows in one window need 1.1 MB."""
_OUTPUT_BYTES = 1 << 26
"""Bytes of a usual slot for outputs, more than all but logits need."""
_CACHED_SIZES = 256
_MIN_SCRATCH = 1 << 22
"""Least numbers in the attention's scratch memory, 16 MB. It grows by as many."""
_PIECE_BYTES = 24
_MAX_PIECES = 4096
"""Pieces of a launch of copies outside a forward."""


def padded_count(count: int) -> int:
    """Return the number of rows that are computed for `count` rows."""
    return next((rows for rows in ROWS if rows >= count), count)


class ForwardSize(NamedTuple):
    """Padded numbers of rows and of sampled rows."""

    rows: int
    sampled: int

    def arrays(self, forms: Mapping[str, ValueForm]) -> dict[str, ArrayForm]:
        """Return the arrays of `forms` in a forward of this size."""
        return arrays_of_lengths(forms, {"N": self.rows, "Q": self.sampled})


@dataclass(frozen=True)
class Places:
    """Places of arrays in a block of memory."""

    forms: Mapping[str, ArrayForm]
    starts: Mapping[str, int]
    size: int

    def views(self, block: npt.NDArray[np.uint8]) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays in a block of host memory."""
        return {
            name: block[self.starts[name] :][: form.size].view(form.dtype).reshape(form.shape)
            for name, form in self.forms.items()
        }

    def at(self, address: int) -> dict[str, tuple[ArrayForm, int]]:
        """Return the arrays with their addresses in a block of device memory."""
        return {name: (form, address + self.starts[name]) for name, form in self.forms.items()}


def _placed(forms: Mapping[str, ArrayForm], alignment: int = _ALIGNMENT) -> Places:
    starts, end = {}, 0
    for name, form in forms.items():
        starts[name] = end
        end += -(-form.size // alignment) * alignment
    return Places(forms, starts, end)


@dataclass(eq=False)
class RowCopies:
    """Copies of rows of all arrays into chunks, for one launch."""

    source: RowStrides
    pieces: list[tuple[int, int, int]]
    """Addresses of the first array's first row to read and to write, and number of rows."""
    are_made: bool = False
    """True once the device's thread has launched them."""


class Slot:
    """Memory of one forward in flight, and of its new rows until they are released."""

    def __init__(self, memory: CudaMemory, inputs: int, outputs: int, rows: int, *, is_usual: bool) -> None:
        """Allocate bytes for all inputs, for all outputs but new rows, and for new rows.

        A usual slot is used again, and its forwards are captured.
        """
        self.is_usual, self.sizes = is_usual, (inputs, outputs, rows)
        with ExitStack() as stack:
            self.upload = memory.pinned_block(inputs)
            stack.callback(memory.free_pinned_block, self.upload)
            self.download = memory.pinned_block(outputs)
            stack.callback(memory.free_pinned_block, self.download)
            self.arrived = memory.event()
            """Recorded behind the download."""
            stack.callback(memory.free_event, self.arrived)
            on_device = BufferSet(memory, self.sizes)
            stack.callback(on_device.free)
            self._allocated = stack.pop_all()
        self.inputs, self.outputs, self.rows = (buffer.address for buffer in on_device.buffers)
        self.is_idle = True
        """False from a forward until it was waited for. The device may still read the upload until then."""

    def free(self) -> None:
        """Free the memory after waiting for all work."""
        self._allocated.close()


class PackedForward:
    """The twin for CUDA in ONNX Runtime, and the memory that its forwards share."""

    def __init__(
        self, bundle: Bundle, device: str, memory: CudaMemory, operators: CudaOperators, shape: CacheShape
    ) -> None:
        """Open the twin. Raises BadInputError and MissingBackendError like ProviderSession."""
        self.memory, self._kernel = memory, RowKernel(operators.library, shape)
        manifest, twin = bundle.manifest, operators.twin
        whole = manifest.dimensions.whole_model
        fused = {each.name for each in twin.fused}
        forms = {name: form for name, form in inputs_of_twin(manifest, whole, twin).items() if name not in fused}
        self._types = {name: stored_dtype(forms.pop(name).type) for name in (ATTENTION_WORK, ATTENTION_SCRATCH, CACHE)}
        self._inputs = forms
        self._outputs = outputs_of_twin(manifest, whole, twin)
        self._new_rows = {name: self._outputs.pop(name) for name in window_names(manifest.dimensions.layers)}
        if SOFT_EMBEDDINGS in forms:  # they stay on the device too
            self._new_rows[NEXT_SOFT_EMBEDDINGS] = self._outputs.pop(NEXT_SOFT_EMBEDDINGS)
            self._new_rows[SOFT_EMBEDDINGS] = forms.pop(SOFT_EMBEDDINGS)
        self.chunk = RowStrides(array=shape.kv_heads * CHUNK_ROWS, head=CHUNK_ROWS, row=1)
        self._session, self._with_graphs = opened_for_graphs(bundle, device, memory, operators)
        self._weights = fused_weights(bundle, twin, memory)
        self._scratch = self.scratch_floats = 0
        self._captured: dict[tuple[Slot, int, int], Any] = {}
        self.grow_scratch(_MIN_SCRATCH)
        self._table = memory.allocate(_MAX_PIECES * _PIECE_BYTES)
        """Table of copies outside forwards."""
        self.places = lru_cache(maxsize=_CACHED_SIZES)(self._places)
        inputs, outputs, rows = (each.size for each in self.places(ForwardSize(MAX_ROWS, MAX_ROWS)))
        self.usual = inputs + _LIST_BYTES, min(outputs, _OUTPUT_BYTES), rows
        """Bytes of a usual slot."""

    def _places(self, size: ForwardSize) -> tuple[Places, Places, Places]:
        """Return the places of the inputs that are uploaded before the attention's lists, of the outputs that are
        downloaded, and of new rows."""
        inputs, outputs, rows = (size.arrays(forms) for forms in (self._inputs, self._outputs, self._new_rows))
        return _placed(inputs), _placed(outputs), _placed(rows, 1)

    def run(
        self,
        slot: Slot,
        size: ForwardSize,
        uploaded: int,
        cache: int,
        copies: Sequence[RowCopies],
        soft: Sequence[tuple[int, int, int]],
    ) -> None:
        """Enqueue a forward: the upload, `copies`, the graph and the download.

        The upload has the inputs, the attention's lists and the table of the copies. `cache` is the address of the
        first slab of chunks. `soft` has offsets in the soft embeddings, addresses of their sources, and bytes.
        """
        memory, (inputs, outputs, rows) = self.memory, self.places(size)
        memory.copy(slot.inputs, slot.upload.ctypes.data, uploaded)
        self._launch(copies, slot.inputs + uploaded - table_bytes(copies))
        if SOFT_EMBEDDINGS in rows.forms:
            memory.fill_zero(slot.rows + rows.starts[SOFT_EMBEDDINGS], rows.forms[SOFT_EMBEDDINGS].size)
        for offset, source, count in soft:
            memory.copy(slot.rows + rows.starts[SOFT_EMBEDDINGS] + offset, source, count)
        key = (slot, size.rows, size.sampled)
        bound, captures = self._captured.get(key), False
        if bound is None:
            captures = self._with_graphs and slot.is_usual
            others = {
                ATTENTION_WORK: ((slot.sizes[0] - inputs.size) // 4, slot.inputs + inputs.size),
                ATTENTION_SCRATCH: (self.scratch_floats, self._scratch),
                CACHE: (1, cache),
            }
            lists = {name: (ArrayForm((count,), self._types[name]), at) for name, (count, at) in others.items()}
            given = outputs.at(slot.outputs) | rows.at(slot.rows)
            soft_inputs = {name: given.pop(name) for name in {SOFT_EMBEDDINGS} & given.keys()}
            taken = inputs.at(slot.inputs) | soft_inputs | lists | self._weights
            bound = self._session.bound(taken, given, captures=captures)
        self._session.run(bound, captures=captures)
        if captures:
            self._captured[key] = bound
        memory.copy(slot.download.ctypes.data, slot.outputs, outputs.size)
        memory.record(slot.arrived)

    def copy_rows(self, copies: Sequence[RowCopies]) -> None:
        """Run copies outside a forward, and wait for them."""
        for each in copies:
            for first in range(0, len(each.pieces), _MAX_PIECES):
                some = [RowCopies(each.source, each.pieces[first : first + _MAX_PIECES], each.are_made)]
                self.memory.upload(self._table, table_of(some))
                self._launch(some, self._table)
            each.are_made = True
        self.memory.synchronize()

    def close(self) -> None:
        """Free the session. The memory frees itself."""
        self._captured.clear()
        self._session.close()

    def _launch(self, copies: Sequence[RowCopies], table: int) -> None:
        for each in copies:
            if not each.are_made:
                most, each.are_made = max(count for _, _, count in each.pieces), True
                self._kernel.launch(self.memory.stream, table, len(each.pieces), most, each.source, self.chunk)
            table += table_bytes([each])

    def grow_scratch(self, floats: int) -> None:
        """Make room for numbers in the attention's scratch memory, which all forwards use in turn. Waits for them.

        Raises CudaMemoryError; the memory is then as before.
        """
        floats = -(-floats // _MIN_SCRATCH) * _MIN_SCRATCH
        address = self.memory.allocate(4 * floats)
        self.memory.synchronize()
        self._captured.clear()  # the graphs have the old address
        if self._scratch:
            self.memory.free(self._scratch)
        self._scratch, self.scratch_floats = address, floats


def table_of(copies: Sequence[RowCopies]) -> npt.NDArray[np.int64]:
    """Return the table of copies for the kernel, [pieces, 3]."""
    return np.array([piece for each in copies for piece in each.pieces], np.int64).reshape(-1, 3)


def table_bytes(copies: Sequence[RowCopies]) -> int:
    """Return the bytes of the table of copies."""
    return _PIECE_BYTES * sum(len(each.pieces) for each in copies)
