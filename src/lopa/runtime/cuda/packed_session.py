"""A Session over packed rows on one CUDA device: caches in shared chunks, and several forwards in flight.

The lists of a forward are made on the caller's thread, which also owns the caches. A thread of the device enqueues the
work, and nothing waits for it but `wait`. Commits only note copies: the next forward makes them, in one launch.
"""

import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, pairwise
from typing import TypeVar, cast

import numpy as np

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import (
    INPUT_IDS,
    IS_CANVAS,
    NEXT_SOFT_EMBEDDINGS,
    SAMPLED_ROWS,
    TEMPERATURE,
    UNIFORM,
    CacheRows,
    Rows,
    Statistics,
    statistics_of_arrays,
)
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.contract.rotary import position_inputs
from lopa.runtime.cuda.cache_chunks import ChunkedCache, ChunkPool, ChunkRows
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.packed_forward import (
    MAX_ROWS,
    ForwardSize,
    PackedForward,
    RowCopies,
    Slot,
    padded_count,
    table_bytes,
    table_of,
)
from lopa.runtime.cuda.row_kernel import RowStrides
from lopa.runtime.cuda_kernels.attention_tasks import CHUNK_ROWS, AttentionHeads, attention_work
from lopa.runtime.errors import DeviceMemoryError, EngineFailedError, converted_device_errors
from lopa.runtime.sessions.caching_session import CachingSession
from lopa.runtime.sessions.device_worker import DeviceWorker
from lopa.runtime.sessions.prefix_cache import cache_shape_from_manifest, check_rows
from lopa.runtime.sessions.session import KeptRows
from lopa.runtime.sessions.tickets import Ticket, window_of_branch

T = TypeVar("T")
_RESERVE = 1 << 29
"""Bytes of device memory that caches leave to forwards of other sizes."""
_FREE_BYTES_CALLS = 32


class _Flight:
    """A forward, whose slot has its new rows: dtype [arrays, size.rows, Hkv, D]. The slot is returned when the object
    is deleted."""

    enqueued: Future[None]

    def __init__(self, slot: Slot, size: ForwardSize, returned: list[Slot]) -> None:
        self.slot, self.size, self._returned = slot, size, returned

    def __del__(self) -> None:
        self._returned.append(self.slot)


class PackedSession(CachingSession[PackedForward, ChunkedCache, "_Flight"]):
    """Session on "cuda:N" with the operators of this project."""

    rows_per_forward = MAX_ROWS

    def __init__(self, bundle: Bundle, device: str, forward: PackedForward, worker: DeviceWorker) -> None:
        """Create a session over a forward that was opened on the thread of `worker`. Raises DeviceMemoryError."""
        dimensions = bundle.manifest.dimensions
        super().__init__(forward, device, lambda request: ChunkedCache(request, self._chunks))
        self._rotary = bundle.manifest.rotary
        self._shape = cache_shape_from_manifest(bundle.manifest)
        self._heads = [AttentionHeads(dimensions.heads, dimensions.kv_heads, dimensions.head_size)]
        if dimensions.canvas is not None:
            own = dimensions.canvas
            self._heads.insert(0, AttentionHeads(dimensions.heads, own.full_kv_heads, own.full_head_size))
        self._soft: dict[int, tuple[_Flight, int]] = {}
        """The last forward of each request, and the first of its sampled rows there, in contract 2."""
        self._soft_row = dimensions.hidden_size * self._shape.dtype.itemsize
        """Bytes of a row's soft embedding."""
        self._row = self._shape.head_size * self._shape.dtype.itemsize
        self._in_chunk = forward.chunk
        self._copies: list[RowCopies] = []
        """Copies into chunks that no forward has made yet, in order."""
        self._are_apart = True
        """True if the next copy may write what a noted one writes, and needs a launch of its own."""
        self._flights: weakref.WeakKeyDictionary[Ticket, _Flight] = weakref.WeakKeyDictionary()
        self._returned: list[Slot] = []
        """Slots that no ticket uses."""
        self._asked, self._free_bytes = 0, (0, 0)
        """Number of `free_rows` calls. All chunks when the device was asked last, and its free bytes."""
        self._reserve = 0
        """Bytes of free memory that chunks do not take. The first ones do."""
        self._worker = worker
        memory = forward.memory
        try:
            self._chunks = ChunkPool(
                self._shape.arrays * self._shape.kv_heads * CHUNK_ROWS * self._row,
                lambda size: self._on_worker(partial(_allocated, memory, size, self._reserve)),
                lambda address: self._on_worker(partial(_freed, memory, address)),
                device,
            )
            self._returned += [self._on_worker(partial(Slot, memory, *forward.usual, is_usual=True)) for _ in range(2)]
            self._reserve = _RESERVE
        except BaseException:
            self.close()
            raise

    def start(self, batch: PackedBatch) -> Ticket:
        """Enqueue a forward. Raises like Session.start."""
        self._open_forward()
        ticket = self._tickets.start(batch)
        try:
            flight = self._enqueued(batch, [self._cache(request) for request in batch.requests])
        except BaseException:
            self._tickets.release(ticket)
            raise
        self._flights[ticket] = flight
        return ticket

    def wait(self, ticket: Ticket) -> Statistics:
        """Return the statistics of a forward. Raises like Session.wait, and EngineFailedError if the device fails.

        After a failure of the device, the rows of all forwards are gone.
        """
        forward = self._open_forward()
        batch, flight = self._tickets.take(ticket), self._flights.pop(ticket)
        try:
            with converted_device_errors(self._device):
                flight.enqueued.result()
                forward.memory.wait_for(flight.slot.arrived)
        except EngineFailedError:
            self._tickets.clear()
            del flight  # the error's traceback would keep its slot
            raise
        flight.slot.is_idle = True
        if batch.canvas is not None:
            slots = batch.slots[batch.starts.searchsorted(batch.sampled_rows, "right") - 1]
            firsts = slots.searchsorted(np.arange(len(batch.requests))).tolist()
            self._soft |= {request: (flight, first) for request, first in zip(batch.requests, firsts, strict=True)}
        arrays = forward.places(flight.size)[1].views(flight.slot.download)
        self._tickets.keep(ticket, flight)
        return statistics_of_arrays(arrays).mapped(lambda array: array[: len(batch.sampled_rows)].copy())

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append rows of a forward to the request's prefix. Raises like Session.commit, and DeviceMemoryError."""
        self._open_forward()
        address, source = self._window(ticket, request, branch, count)
        self._tickets.check_idle(request)
        self._append(request, address, source, count)

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return a host copy of rows of a forward. Raises like `commit`."""
        forward = self._open_forward()
        address, source = self._window(ticket, request, branch, count)
        rows = np.empty((self._shape.arrays, count, self._shape.kv_heads, self._shape.head_size), self._shape.dtype)

        def download() -> None:
            for array, found in enumerate(rows):
                forward.memory.download(found, address + array * source.array * self._row)
            forward.memory.synchronize()

        with converted_device_errors(self._device):
            self._on_worker(download)
        return CacheRows(tuple(np.ascontiguousarray(rows.transpose(0, 2, 1, 3))))

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows."""
        self._tickets.release(ticket)
        self._flights.pop(ticket, None)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed. Raises ValueError if they do not match this bundle."""
        memory = self._open_forward().memory
        self._tickets.check_idle(request)
        check_rows(self._shape, rows.layers)
        if not rows.count:
            return
        heads = self._shape.kv_heads
        block = np.ascontiguousarray(np.stack(rows.layers).transpose(0, 2, 1, 3))
        with converted_device_errors(self._device):
            address = self._make_room(partial(_uploaded, memory, block), request, rows.count)
            try:
                self._append(request, address, RowStrides(rows.count * heads, 1, heads), rows.count)
            finally:
                self._make_copies()
                self._on_worker(partial(_freed, memory, address))

    def keep_rows(self, request: int, start: int, count: int) -> ChunkRows:
        """Return references to committed rows. Raises like Session.keep_rows."""
        return self._with_rows(request, start, count).keep(start, count)

    def append_kept(self, request: int, rows: Sequence[KeptRows]) -> None:
        """Append kept rows by reference. Rows that no request had after these are copied. Raises DeviceMemoryError."""
        self._open_forward()
        self._tickets.check_idle(request)
        cache = self._cache(request)
        length = cache.length
        try:
            for run in chain.from_iterable(cast("ChunkRows", each).runs for each in rows):
                if not cache.share(run):
                    self._append(request, run.chunk.address + run.first * self._row, self._in_chunk, run.count)
        except DeviceMemoryError:
            self.shorten(request, length)
            raise

    def free_rows(self) -> int:
        """Return the number of rows that free chunks and free device memory can hold. The device is not asked each
        time."""
        self._asked += 1
        if self._asked % _FREE_BYTES_CALLS == 1 or self._free_bytes[0] != self._chunks.total:
            self._free_bytes = self._chunks.total, self._on_worker(self._open_forward().memory.free_bytes)
        left = max(0, self._free_bytes[1] - _RESERVE)
        return (self._chunks.free + left // self._chunks.chunk_bytes) * CHUNK_ROWS

    def free(self, request: int) -> None:
        """Free the request's cache. An unknown request is ignored."""
        self._tickets.free(request)
        self._soft.pop(request, None)
        if self._caches.pop(request, None) is None:
            return
        self._are_apart = True
        if self._chunks.can_shrink:
            self._make_copies()
            self._chunks.shrink()

    def close(self) -> None:
        """Free the forward and all memory. Closing twice is allowed."""
        forward, self._forward = self._forward, None
        if forward is None:
            return
        self._tickets.clear()
        self._soft.clear()
        self._caches.clear()
        closing = self._worker.submit(partial(_closed, forward))
        self._worker.stop()
        closing.result()

    def _on_worker(self, work: Callable[[], T]) -> T:
        return self._worker.submit(work).result()

    def _shorten(self, cache: ChunkedCache, count: int) -> None:
        cache.shorten(count)
        self._are_apart = True

    def _enqueued(self, batch: PackedBatch, caches: Sequence[ChunkedCache]) -> _Flight:
        """Make a forward's inputs in pinned memory, and let the device's thread enqueue it."""
        forward, item, base = self._open_forward(), self._shape.dtype.itemsize, self._chunks.base
        rows, wanted = padded_count(batch.input_ids.size), len(batch.sampled_rows)
        chunks = [[(chunk.address - base) // item for chunk in cache.chunks] for cache in caches]
        work = attention_work(batch, rows, [cache.length for cache in caches], chunks, *self._heads)
        size = ForwardSize(rows, padded_count(wanted))
        if work.scratch > forward.scratch_floats:
            self._make_room(partial(forward.grow_scratch, work.scratch), batch.requests[-1], rows)
        slot = self._slot(size, work.words.nbytes, batch.requests[-1])
        flight = _Flight(slot, size, self._returned)
        copies = self._noted_copies()
        places, table = forward.places(size)[0], table_of(copies)
        windows = batch.starts.searchsorted(batch.sampled_rows, "right") - 1
        inputs = {
            INPUT_IDS: batch.input_ids,
            **position_inputs(batch.position_ids, self._rotary),
            SAMPLED_ROWS: batch.sampled_rows,
            TEMPERATURE: batch.temperature[batch.slots[windows]],
        }
        if batch.canvas is not None:
            inputs |= {IS_CANVAS: batch.canvas.is_canvas, UNIFORM: batch.canvas.uniform}
        for name, array in places.views(slot.upload).items():
            array[: len(inputs[name])] = inputs[name]
            array[len(inputs[name]) :] = name == TEMPERATURE  # 1 as temperature of padding, otherwise 0
        uploaded = places.size
        for array in (work.words, table):
            begin = -(-uploaded // 8) * 8  # kernels read numbers of 8 bytes
            uploaded = begin + array.nbytes
            slot.upload[begin:uploaded] = array.ravel().view(np.uint8)
        slot.is_idle = False
        flight.enqueued = self._worker.submit(
            partial(forward.run, slot, size, uploaded, base, copies, self._soft_copies(batch))
        )
        return flight

    def _soft_copies(self, batch: PackedBatch) -> list[tuple[int, int, int]]:
        """Return the soft embeddings that rows of a forward take: offset, address of the source, and bytes of each run
        of rows."""
        if batch.canvas is None:
            return []
        rows, slots = np.flatnonzero(batch.canvas.soft_rows >= 0), batch.slots.repeat(batch.lengths)
        begins = {
            slot: flight.slot.rows
            + self._open_forward().places(flight.size)[2].starts[NEXT_SOFT_EMBEDDINGS]
            + first * self._soft_row
            for slot in np.unique(slots[rows]).tolist()
            for flight, first in [self._soft[batch.requests[slot]]]
        }
        sources = np.array([begins[slot] for slot in slots[rows].tolist()], np.int64)
        sources += batch.canvas.soft_rows[rows] * self._soft_row
        ends = np.flatnonzero((np.diff(rows) != 1) | (np.diff(sources) != self._soft_row)) + 1
        runs = pairwise([0, *ends.tolist(), len(rows)]) if len(rows) else ()
        return [
            (int(rows[begin]) * self._soft_row, int(sources[begin]), (end - begin) * self._soft_row)
            for begin, end in runs
        ]

    def _slot(self, size: ForwardSize, lists: int, request: int) -> Slot:
        """Return a slot for a forward with bytes for its lists: one that was returned, or a new one.

        Raises DeviceMemoryError for `request`.
        """
        forward = self._open_forward()
        inputs, outputs, rows = (each.size for each in forward.places(size))
        needed = inputs + lists + 8 + table_bytes(self._copies), outputs, rows
        for slot in [slot for slot in self._returned if not slot.is_usual]:
            self._make_copies()  # of its new rows
            self._returned.remove(slot)
            self._on_worker(slot.free)
        is_usual = all(has >= needs for has, needs in zip(forward.usual, needed, strict=True))
        if is_usual and self._returned:
            slot = self._returned.pop()
            if not slot.is_idle:  # its forward failed, or nobody waited for it
                self._on_worker(forward.memory.synchronize)
            return slot
        sizes = forward.usual if is_usual else needed
        return self._make_room(partial(Slot, forward.memory, *sizes, is_usual=is_usual), request, size.rows)

    def _make_room(self, work: Callable[[], T], request: int, rows: int) -> T:
        """Return the result of `work`, which allocates device memory. Raises DeviceMemoryError if it is full."""
        try:
            return self._on_worker(work)
        except MemoryError as error:
            raise DeviceMemoryError(self._device, request, rows) from error

    def _window(self, ticket: Ticket, request: int, branch: int, count: int) -> tuple[int, RowStrides]:
        """Return address and strides of a window's new rows. Raises like Tickets.window."""
        found, index = self._tickets.window(ticket, request, branch, count)
        first = int(ticket.batch.starts[window_of_branch(ticket.batch, index, branch)])
        heads = self._shape.kv_heads
        return found.slot.rows + first * heads * self._row, RowStrides(found.size.rows * heads, 1, heads)

    def _append(self, request: int, address: int, source: RowStrides, count: int) -> None:
        """Note the copies that append rows to a cache. Raises DeviceMemoryError; nothing is then appended."""
        runs, copied = self._cache(request).extend(count)
        if copied is not None:
            self._note(self._in_chunk, copied.chunk.address, runs[0].chunk.address, copied.count)
        for run in runs:
            self._note(source, address, run.chunk.address + run.first * self._row, run.count)
            address += run.count * source.row * self._row

    def _note(self, source: RowStrides, start: int, target: int, count: int) -> None:
        """Note a copy. Copies of new rows in one forward are made by one launch. Copies of chunks are not, as one may
        read what another writes."""
        if self._are_apart or not self._copies or self._copies[-1].source != source or source == self._in_chunk:
            self._copies.append(RowCopies(source, []))
        self._copies[-1].pieces.append((start, target, count))
        self._are_apart = False

    def _make_copies(self) -> None:
        """Make the noted copies at once."""
        if copies := self._noted_copies():
            self._on_worker(partial(self._open_forward().copy_rows, copies))

    def _noted_copies(self) -> list[RowCopies]:
        """Return the copies to make. They are noted until the device's thread has made them, whatever interrupts this
        one."""
        self._are_apart = True
        self._copies = [copies for copies in self._copies if not copies.are_made]
        return list(self._copies)


def _allocated(memory: CudaMemory, size: int, reserve: int) -> int:
    """Return the address of new memory, all zeros. Raises MemoryError unless `reserve` bytes stay free."""
    if reserve and memory.free_bytes() < size + reserve:
        raise MemoryError
    address = memory.allocate(size)
    memory.fill_zero(address, size)
    return address


def _freed(memory: CudaMemory, address: int) -> None:
    memory.synchronize()
    memory.free(address)


def _uploaded(memory: CudaMemory, block: Rows) -> int:
    """Return the address of a copy of an array in device memory."""
    address = memory.allocate(block.nbytes)
    try:
        memory.upload(address, block)
    except BaseException:
        _freed(memory, address)
        raise
    return address


def _closed(forward: PackedForward) -> None:
    try:
        forward.close()
    finally:
        forward.memory.close()
