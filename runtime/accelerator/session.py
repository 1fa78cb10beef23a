"""A Session whose prefix caches and new rows live in the memory of a device, over a forward with a few gears.

Knows when caches begin, grow and end, what is padded, and what the last forward left to commit; only the small inputs
and the statistics travel between host and device. Does not know whose device it is, nor how a forward is computed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from lopa.runtime import contract
from lopa.runtime.accelerator.cache import DeviceCache, StackedCaches, buffers_of_rows, row_bytes
from lopa.runtime.accelerator.graph_form import Array, GraphForm
from lopa.runtime.accelerator.lent_rows import DeviceRows, Lender, RowLoan
from lopa.runtime.accelerator.memory import (
    Buffer,
    BufferSet,
    DeviceMemory,
    GrowingBuffers,
    RowPlace,
    copy_rows,
    download_rows,
)
from lopa.runtime.accelerator.padding import (
    batch_of_part,
    cut_statistics,
    joined_answers,
    padded_batch,
    parts_of_forward,
)
from lopa.runtime.bundle.gears import Gear, GearTable
from lopa.runtime.contract import (
    Bool,
    CacheRows,
    Rows,
    Sizes,
    Statistics,
    WindowBatch,
    sizes_of_batch,
    tiles,
    window_names,
)
from lopa.runtime.sessions.device_errors import raised_as_failure_of
from lopa.runtime.sessions.host_session import check_batch, slot_of_rows
from lopa.runtime.sessions.prefix_cache import CacheShape, check_rows
from lopa.runtime.sessions.session import Session


class DeviceForward(Protocol):
    """One forward in the shape of a gear, from device memory to device memory, without memory of requests."""

    @property
    def memory(self) -> DeviceMemory:
        """Of the device, with the stream that forwards run on."""

    @property
    def form(self) -> GraphForm:
        """The shapes of the graph's inputs and outputs."""

    @property
    def gears(self) -> Sequence[Gear]:
        """All shapes there are, as gears.gears_can_be_used wants them."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes to have for every input and output but the prefix, by name: enough for every gear."""

    def enqueue(self, gear: Gear, buffers: Mapping[str, Buffer]) -> None:
        """Put a forward in the stream's queue; `buffers` has every input and output of the contract by name.

        Each holds at least what the shape of `gear` needs.
        """

    def close(self) -> None:
        """Free everything but the memory; nothing is in the queue."""


@runtime_checkable
class AnyShapeForward(DeviceForward, Protocol):
    """A forward that runs shapes which are none of its gears too; it may have no gears at all."""

    def sizes_of(self, gear: Gear) -> Mapping[str, int]:
        """Bytes of every input and output but the prefix in any shape, by name."""


class DeviceSession:
    """The Session protocol: caches in the memory of `forward`'s device."""

    def __init__(
        self,
        forward: DeviceForward,
        device: str,
        shape: CacheShape,
        vocab_size: int,
        gear_for: Callable[[Sizes], Gear] | None = None,
        *,
        fixed_addresses: bool = False,
    ) -> None:
        """`gear_for` says in which shape `forward` runs a forward; None: in that of the cheapest of its gears.

        `fixed_addresses`: every input and output of a part of a forward in a gear lies in the same place every time.
        That costs a second copy of the prefix rows in each gear's shape; it is what captured CUDA graphs need.
        """
        self._forward: DeviceForward | None = forward
        self._memory = forward.memory
        self._device = device
        self._shape = shape
        self._fixed_addresses = fixed_addresses
        self._gears = frozenset(forward.gears)
        self._gear_for = gear_for or GearTable(forward.gears).gear_for
        self._prefixes = sorted({gear.prefix for gear in forward.gears})
        self._window_names = window_names(shape.arrays // 2)
        self._statistics = _statistics_arrays(vocab_size, with_logits=contract.LOGITS in forward.sizes)
        self._small = GrowingBuffers(self._memory)
        """Of the gears: everything but rows."""
        self._small_sizes = {name: size for name, size in forward.sizes.items() if name not in self._window_names}
        if forward.gears:
            self._small.buffers(self._small_sizes)  # a device without room for them says so when it is opened
        self._new_rows: list[GrowingBuffers] = []
        """Of the parts of a forward in a gear, in order; kept for the next one."""
        self._other = GrowingBuffers(self._memory)
        """Of other shapes: everything but the prefix."""
        self._caches: dict[int, DeviceCache] = {}
        self._stacks: dict[tuple[int, int, int], StackedCaches] = {}
        """By R and P of a gear, and the first request of the part that is there."""
        self._other_stack: tuple[tuple[int, int], StackedCaches] | None = None
        """Of another shape, with its R and P: the last one only, since there is no end of them."""
        self._lender = Lender()
        self._window: _Window | None = None

    @property
    def device(self) -> str:
        """The device as the user named it."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix.

        Raises ValueError when the arrays do not fit together, BadInputError for what no gear holds, EngineFailedError
        for whatever the forward raises.
        """
        self._open_forward()
        check_batch(batch)
        self._window = None
        self._lender.end_unused()
        longest = max(map(self.prefix_length, batch.requests))
        sizes = sizes_of_batch(batch, tiles(longest))
        gear = self._gear_for(sizes)
        parts = tuple(parts_of_forward(sizes, gear))
        places = [self._buffers_of_part(number, gear) for number in range(len(parts))]
        answers = (
            (part, self._run_part(place, batch_of_part(batch, part), part[0].start, gear), ())
            for part, place in zip(parts, places, strict=True)
        )
        with raised_as_failure_of(self._device):
            statistics = joined_answers(sizes, answers)[0] if len(parts) > 1 else next(answers)[1]
        rows = tuple(tuple(place[name] for name in self._window_names) for place in places)
        self._window = _Window(batch.requests, sizes, gear, rows)
        return statistics

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix, on the device.

        Only put in the stream's queue. Raises as HostSession.commit does.
        """
        place = self._place(request, branch, count)
        self._cache(request).append(place, count)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """A copy of the first `count` new rows of `branch` in the last forward, on the host; errors as for `commit`."""
        place = self._place(request, branch, count)
        shape = (self._shape.kv_heads, count, self._shape.head_size)
        rows: tuple[Rows, ...] = tuple(np.empty(shape, self._shape.dtype) for _ in range(self._shape.arrays))
        download_rows(self._memory, rows, place)
        self._memory.synchronize()
        return CacheRows(rows)

    def meet(self, others: Sequence[Session]) -> None:
        """LendingSession.meet."""
        for other in others:
            if isinstance(other, DeviceSession):
                self._memory.reach(other.memory)

    def lend_rows(self, request: int, branch: int, count: int, borrowers: Sequence[Session]) -> CacheRows:
        """As read_rows, but the rows stay on the device when all sessions in `borrowers` can take them from there."""
        memories = [each.memory if isinstance(each, DeviceSession) else None for each in borrowers]
        if not count or not all(memory is not None and self._memory.reach(memory) for memory in memories):
            return self.read_rows(request, branch, count)
        place = self._place(request, branch, count)
        buffers = buffers_of_rows(self._memory, self._shape, 1, count)
        size = count * row_bytes(self._shape)
        lent = RowPlace(tuple(buffer.address for buffer in buffers.buffers), size)
        copy_rows(self._memory, lent, place, size, self._shape.kv_heads)
        self._memory.synchronize()
        loan = RowLoan(buffers)
        return self._lender.lend(
            DeviceRows(layers=(), memory=self._memory, place=lent, shape=self._shape, rows=count, loan=loan)
        )

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed, or lent. Raises ValueError when they do not fit this bundle.

        RuntimeError for lent rows of a device that is closed or that this one does not reach.
        """
        self._open_forward()
        if not isinstance(rows, DeviceRows):
            check_rows(self._shape, rows.layers)
            self._cache(request).append_from_host(rows.layers)
            return
        if rows.shape != self._shape:
            raise ValueError(f"received rows of a cache {rows.shape}, expected {self._shape}")
        if not self._memory.reach(rows.memory):
            raise RuntimeError(f"{self._device} does not reach the device that lends rows; expected rows on the host")
        with rows.loan.use():
            self._cache(request).append(rows.place, rows.count)
            self._memory.synchronize()

    def prefix_length(self, request: int) -> int:
        """Committed rows of the request, 0 for an unknown one."""
        return self._caches[request].length if request in self._caches else 0

    def release(self, request: int) -> None:
        """Forget the request, its cache and its new rows; an unknown one is no error."""
        if self._window is not None and request in self._window.requests:
            self._window = None
        cache = self._caches.pop(request, None)
        if cache is None:
            return
        if not self._fixed_addresses:
            for key in [key for key, stack in self._stacks.items() if stack.has(cache)]:
                self._stacks.pop(key).free()
        if self._other_stack is not None and self._other_stack[1].has(cache):
            self._free_other_stack()
        cache.free()

    def close(self) -> None:
        """Free the forward and all memory; closing twice is no error."""
        forward, self._forward, self._window = self._forward, None, None
        if forward is None:
            return
        try:
            self._lender.end_all()
            for cache in self._caches.values():
                cache.free()
            for stack in self._stacks.values():
                stack.free()
            self._free_other_stack()
            for buffers in (*self._new_rows, self._small, self._other):
                buffers.free()
        finally:
            self._caches.clear()
            self._stacks.clear()
            self._new_rows.clear()
            try:
                forward.close()
            finally:
                self._memory.close()

    @property
    def memory(self) -> DeviceMemory:
        """Of the device."""
        return self._memory

    def _open_forward(self) -> DeviceForward:
        if self._forward is None:
            raise RuntimeError(f"the session on {self._device} was used after close(); expected an open session")
        return self._forward

    def _run_part(self, place: Mapping[str, Buffer], batch: WindowBatch, first: int, gear: Gear) -> Statistics:
        """One forward in the shape of `gear`: a part whose first request is the `first`, and its arrays."""
        forward, memory = self._open_forward(), self._memory
        lengths = [self.prefix_length(request) for request in batch.requests]
        mask = _prefix_mask(lengths, gear.requests, gear.prefix)
        padded = padded_batch(batch, gear)
        for name, array in forward.form.inputs(padded, mask).items():
            memory.upload(place[name].address, array)
        past = self._prefix_arrays([self._cache(request) for request in batch.requests], first, gear)
        forward.enqueue(gear, {**place, **forward.form.past(past)})
        rows = (gear.requests, gear.branches, gear.wanted)
        outputs: dict[str, Array] = {
            name: np.empty((*rows, *last), dtype) for name, (last, dtype) in self._statistics.items()
        }
        for name, target in outputs.items():
            memory.download(target, place[name].address)
        memory.synchronize()
        return cut_statistics(_statistics_from_outputs(outputs), sizes_of_batch(batch, gear.prefix))

    def _prefix_arrays(self, caches: Sequence[DeviceCache], first: int, gear: Gear) -> BufferSet:
        """The committed rows in the shape of `gear`: a request's own cache where it has that, otherwise a copy."""
        other = self._is_other(gear)
        own = gear.requests == 1 and caches[0].capacity == gear.prefix
        if own and (other or not self._fixed_addresses):
            return caches[0].buffers
        shape = (gear.requests, gear.prefix)
        if other:
            if self._other_stack is None or self._other_stack[0] != shape:
                self._free_other_stack()
                self._other_stack = shape, StackedCaches(self._memory, self._shape, *shape)
            return self._other_stack[1].stacked(caches)
        key = (*shape, first)
        if key not in self._stacks:
            self._stacks[key] = StackedCaches(self._memory, self._shape, *shape)
        return self._stacks[key].stacked(caches)

    def _is_other(self, gear: Gear) -> bool:
        """Whether it is no gear of the forward's, but one of the endless shapes that it takes too."""
        return isinstance(self._forward, AnyShapeForward) and gear not in self._gears

    def _free_other_stack(self) -> None:
        other, self._other_stack = self._other_stack, None
        if other is not None:
            other[1].free()

    def _buffers_of_part(self, number: int, gear: Gear) -> dict[str, Buffer]:
        """Where a part of a forward has its inputs and outputs but the prefix."""
        forward = self._open_forward()
        if isinstance(forward, AnyShapeForward) and self._is_other(gear):
            return self._other.buffers(forward.sizes_of(gear))
        if number == len(self._new_rows):
            self._new_rows.append(GrowingBuffers(self._memory))
        rows = {name: forward.sizes[name] for name in self._window_names}
        return {**self._small.buffers(self._small_sizes), **self._new_rows[number].buffers(rows)}

    def _cache(self, request: int) -> DeviceCache:
        if request not in self._caches:
            self._caches[request] = DeviceCache(self._memory, self._shape, self._capacity_for)
        return self._caches[request]

    def _capacity_for(self, rows: int) -> int:
        """The next prefix that some gear has: such a cache is used without a copy."""
        return next((prefix for prefix in self._prefixes if prefix >= rows), tiles(rows))

    def _place(self, request: int, branch: int, count: int) -> RowPlace:
        """Where the new rows of a branch lie. Raises as slot_of_rows does."""
        forward, window = self._open_forward(), self._window
        ran = None
        if window is not None:
            ran = (window.requests, window.sizes.branches, window.sizes.window)
        slot = slot_of_rows(ran, request, branch, count)
        assert window is not None
        gear = window.gear
        across = -(-window.sizes.branches // gear.branches)
        part = slot // gear.requests * across + branch // gear.branches
        steps, size = forward.form.row_steps(gear, self._shape.kv_heads), row_bytes(self._shape)
        offset = (slot % gear.requests * steps.request + branch % gear.branches * steps.branch) * size
        addresses = tuple(buffer.address + offset for buffer in window.rows[part])
        return RowPlace(addresses, steps.head * size)


@dataclass(frozen=True)
class _Window:
    """What the last forward left."""

    requests: tuple[int, ...]
    sizes: Sizes
    gear: Gear
    rows: tuple[tuple[Buffer, ...], ...]
    """Where each part's new rows are, in the order of contract.window_names."""


def _statistics_arrays(vocab_size: int, *, with_logits: bool) -> dict[str, tuple[tuple[int, ...], type[np.generic]]]:
    """Name, axes behind [R, B, Q] and type of the outputs that come to the host."""
    arrays: dict[str, tuple[tuple[int, ...], type[np.generic]]] = {
        contract.TOPK_IDS: ((contract.TOP_K,), np.int64),
        contract.TOPK_LOGPROBS: ((contract.TOP_K,), np.float32),
        contract.ENTROPY: ((), np.float32),
    }
    return arrays | ({contract.LOGITS: ((vocab_size,), np.float32)} if with_logits else {})


def _statistics_from_outputs(outputs: Mapping[str, Array]) -> Statistics:
    return Statistics(
        topk_ids=outputs[contract.TOPK_IDS],
        topk_logprobs=outputs[contract.TOPK_LOGPROBS],
        entropy=outputs[contract.ENTROPY],
        logits=outputs.get(contract.LOGITS),
    )


def _prefix_mask(lengths: Sequence[int], requests: int, rows: int) -> Bool:
    """[requests, rows]: true for the first rows of each request that has a length, false for the rest."""
    mask = np.zeros((requests, rows), np.bool_)
    for slot, length in enumerate(lengths):
        mask[slot, :length] = True
    return mask
