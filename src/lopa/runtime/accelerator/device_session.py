"""A Session with prefix caches and new rows in device memory, over a forward with a few shape buckets.

It creates, grows and frees the caches, pads forwards, and keeps the new rows of forwards for commits. Only small inputs
and statistics are copied between host and device.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import numpy.typing as npt

from lopa.runtime import contract
from lopa.runtime.accelerator.buffers import ForwardBuffers
from lopa.runtime.accelerator.device_cache import DeviceCache, buffers_of_rows, row_bytes
from lopa.runtime.accelerator.device_forward import HostBoundForward, QueuedForward
from lopa.runtime.accelerator.device_memory import (
    Buffer,
    BufferSet,
    RowPlace,
    copy_rows,
    download_rows,
)
from lopa.runtime.accelerator.graph_form import Array
from lopa.runtime.accelerator.padding import padded_batch, parts_of_forward
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket
from lopa.runtime.contract import (
    Bool,
    CacheRows,
    Rows,
    Statistics,
    WindowBatch,
    statistics_of_arrays,
    tiles,
    window_names,
)
from lopa.runtime.contract.batch_parts import branch_part_count
from lopa.runtime.contract.sizes import Sizes, sizes_of_batch
from lopa.runtime.errors import EngineFailedError, converted_device_errors
from lopa.runtime.sessions.caching_session import CachingSession
from lopa.runtime.sessions.prefix_cache import CacheShape, check_rows
from lopa.runtime.sessions.session import KeepsOnHost
from lopa.runtime.sessions.soft_rows import SoftRows
from lopa.runtime.sessions.tickets import Ticket


class DeviceSession(CachingSession[QueuedForward | HostBoundForward, DeviceCache, "_NewRows"], KeepsOnHost):
    """Session with caches in the memory of `forward`'s device."""

    def __init__(
        self,
        forward: QueuedForward | HostBoundForward,
        device: str,
        shape: CacheShape,
        vocab_size: int,
        bucket_for: Callable[[Sizes], ShapeBucket] | None = None,
        *,
        hidden_size: int = 0,
        fixed_addresses: bool = False,
    ) -> None:
        """Create a session over `forward`, with soft embeddings of `hidden_size` channels in contract 2.

        `bucket_for` selects the shape of a forward, and None selects the cheapest shape bucket. With `fixed_addresses`,
        every input and output of a part in a shape bucket has the same address in each forward. Captured CUDA graphs
        need that. It costs a second copy of the prefix rows per bucket shape.
        """
        super().__init__(forward, device, lambda _: DeviceCache(self._memory, shape, self._capacity_for))
        self._memory, self._shape = forward.memory, shape
        self._bucket_for = bucket_for or BucketTable(forward.buckets).bucket_for
        self._prefixes = sorted({bucket.prefix for bucket in forward.buckets})
        self._window_names = window_names(shape.arrays // 2)
        ends: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            contract.TOPK_IDS: ((contract.TOP_K,), np.int64),
            contract.TOPK_LOGPROBS: ((contract.TOP_K,), np.float32),
            contract.ENTROPY: ((), np.float32),
            contract.DRAWN_IDS: ((), np.int64),
            contract.NEXT_SOFT_EMBEDDINGS: ((hidden_size,), shape.dtype),
            contract.LOGITS: ((vocab_size,), np.float32),
        }
        self._statistics = {name: end for name, end in ends.items() if name in forward.sizes}
        """Axes after [R, B, Q] and type of each output that is copied to the host, by name."""
        self._soft = SoftRows(shape, hidden_size)
        self._buffers = ForwardBuffers(forward, shape, fixed_addresses=fixed_addresses)
        self._last: Ticket | None = None
        """Ticket of the last run, whose rows the next run overwrites."""

    def wait(self, ticket: Ticket) -> Statistics:
        """Run every window against its request's prefix.

        Raises like Session.wait, BadInputError for sizes beyond all shape buckets, and EngineFailedError for any
        exception of the forward. After a failure of the device, the rows of all forwards are gone.
        """
        self._open_forward()
        packed = self._tickets.take(ticket)
        padded = self._soft.padded(packed)
        batch = padded.batch
        longest = max(map(self.prefix_length, batch.requests))
        sizes = sizes_of_batch(batch, tiles(longest))
        bucket = self._bucket_for(sizes)
        parts = tuple(parts_of_forward(sizes, bucket))
        self._keep_last_rows()
        places = [self._buffers.part_buffers(number, bucket) for number in range(len(parts))]
        try:
            with converted_device_errors(self._device):
                answers = [
                    self._run_part(place, batch.part(*part), part.requests.start, bucket)
                    for part, place in zip(parts, places, strict=True)
                ]
        except EngineFailedError:
            self._tickets.clear()
            raise
        across = branch_part_count(parts)
        rows = tuple(_addresses(place[name] for name in self._window_names) for place in places)
        self._tickets.keep(ticket, _NewRows(bucket, across, rows))
        self._last = ticket
        return self._soft.keep(packed, padded.packed(Statistics.joined(answers, across)))

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append rows of a forward to the request's prefix, on the device.

        The copy is only enqueued. Raises like Session.commit.
        """
        place = self._place(ticket, request, branch, count)
        self._tickets.check_idle(request)
        self._cache(request).append(place, count)

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return a host copy of rows of a forward. Raises like `commit`."""
        return self._downloaded(self._place(ticket, request, branch, count), count)

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows, and free the memory of copies."""
        copies = self._tickets.rows(ticket).copies if ticket in self._tickets else ()
        self._tickets.release(ticket)
        for copy in copies:
            copy.free()

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed. Raises ValueError if they do not match this bundle."""
        self._open_forward()
        self._tickets.check_idle(request)
        check_rows(self._shape, rows.layers)
        self._cache(request).append_from_host(rows.layers)

    def keep_rows(self, request: int, start: int, count: int) -> CacheRows:
        """Return a host copy of committed rows. Raises like Session.keep_rows."""
        return self._downloaded(self._with_rows(request, start, count).place(start), count)

    def free(self, request: int) -> None:
        """Free the request's cache. An unknown request is ignored."""
        self._tickets.free(request)
        self._soft.pop(request, None)
        cache = self._caches.pop(request, None)
        if cache is None:
            return
        self._buffers.forget(cache)
        cache.free()

    def close(self) -> None:
        """Free the forward and all memory. Closing twice is allowed."""
        forward, self._forward = self._forward, None
        if forward is None:
            return
        try:
            for copy in chain(*(rows.copies for rows in self._tickets)):
                copy.free()
            self._tickets.clear()
            for cache in self._caches.values():
                cache.free()
            self._buffers.free()
        finally:
            self._caches.clear()
            self._soft.clear()
            try:
                forward.close()
            finally:
                self._memory.close()

    def _run_part(self, place: dict[str, Buffer], batch: WindowBatch, first: int, bucket: ShapeBucket) -> Statistics:
        """Run one part in the shape of `bucket`. `first` is the index of its first request, and `place` holds its
        arrays.
        """
        forward, memory = self._open_forward(), self._memory
        lengths = [self.prefix_length(request) for request in batch.requests]
        mask = _prefix_mask(lengths, bucket.requests, bucket.prefix)
        padded = padded_batch(batch, bucket)
        inputs = forward.form.inputs(padded, mask)
        rows = (bucket.requests, bucket.branches, bucket.wanted)
        outputs: dict[str, Array] = {
            name: np.empty((*rows, *last), dtype) for name, (last, dtype) in self._statistics.items()
        }
        if isinstance(forward, HostBoundForward):
            forward.run(bucket, inputs, place | self._past(batch.requests, first, bucket), outputs)
        else:
            for name, array in inputs.items():
                memory.upload(place[name].address, array)
            forward.enqueue(bucket, place | self._past(batch.requests, first, bucket))
            for name, target in outputs.items():
                memory.download(target, place[name].address)
            memory.synchronize()
        real = map(slice, batch.logits_index.shape)
        return statistics_of_arrays(outputs).part(*real)

    def _past(self, requests: Sequence[int], first: int, bucket: ShapeBucket) -> dict[str, Buffer]:
        """Return the prefix rows of `requests` by input name, in the shape of `bucket`."""
        caches = [self._cache(request) for request in requests]
        return self._open_forward().form.past(self._buffers.prefix(caches, first, bucket))

    def _shorten(self, cache: DeviceCache, count: int) -> None:
        """Drop rows in order with the device's forwards."""
        self._buffers.shorten(cache, count)
        cache.shorten(count)

    def _capacity_for(self, rows: int) -> int:
        """Return the next larger prefix length of a shape bucket. A cache of this capacity is used without a copy."""
        return next((prefix for prefix in self._prefixes if prefix >= rows), tiles(rows))

    def _place(self, ticket: Ticket, request: int, branch: int, count: int) -> RowPlace:
        """Return the place of a window's new rows. Raises like Tickets.window."""
        forward = self._open_forward()
        rows, slot = self._tickets.window(ticket, request, branch, count)
        bucket = rows.bucket
        part = slot // bucket.requests * rows.across + branch // bucket.branches
        steps, size = forward.form.row_steps(bucket, self._shape.kv_heads), row_bytes(self._shape)
        offset = (slot % bucket.requests * steps.request + branch % bucket.branches * steps.branch) * size
        addresses = tuple(address + offset for address in rows.addresses[part])
        return RowPlace(addresses, steps.head * size)

    def _downloaded(self, place: RowPlace, count: int) -> CacheRows:
        shape = (self._shape.kv_heads, count, self._shape.head_size)
        rows: tuple[Rows, ...] = tuple(np.empty(shape, self._shape.dtype) for _ in range(self._shape.arrays))
        download_rows(self._memory, rows, place)
        self._memory.synchronize()
        return CacheRows(rows)

    def _keep_last_rows(self) -> None:
        """Copy the last run's rows if its ticket is not released."""
        if self._last is not None and self._last in self._tickets:
            rows = self._tickets.rows(self._last)
            copies = tuple(self._copied(addresses, rows.bucket) for addresses in rows.addresses)
            addresses = tuple(_addresses(copy.buffers) for copy in copies)
            self._tickets.keep(self._last, replace(rows, addresses=addresses, copies=copies))
        self._last = None

    def _copied(self, addresses: tuple[int, ...], bucket: ShapeBucket) -> BufferSet:
        """Return a copy of a part's new rows."""
        copy = buffers_of_rows(self._memory, self._shape, bucket.requests, bucket.branches * bucket.window)
        piece = copy.buffers[0].size // self._shape.kv_heads
        copy_rows(
            self._memory,
            RowPlace(_addresses(copy.buffers), piece),
            RowPlace(addresses, piece),
            piece,
            self._shape.kv_heads,
        )
        return copy


@dataclass(frozen=True, eq=False)
class _NewRows:
    """Places of the new rows of a forward."""

    bucket: ShapeBucket
    across: int
    """Number of parts with branches of the same requests."""
    addresses: tuple[tuple[int, ...], ...]
    """Addresses of each part's rows, in the order of contract.window_names."""
    copies: tuple[BufferSet, ...] = ()
    """Memory of the rows, if they are copies of a part's buffers each."""


def _addresses(buffers: Iterable[Buffer]) -> tuple[int, ...]:
    return tuple(buffer.address for buffer in buffers)


def _prefix_mask(lengths: Sequence[int], requests: int, rows: int) -> Bool:
    """Return a mask [requests, rows] that is True for the first `lengths[r]` rows of request r."""
    mask = np.zeros((requests, rows), np.bool_)
    for slot, length in enumerate(lengths):
        mask[slot, :length] = True
    return mask
