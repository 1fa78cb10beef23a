"""Prefix caches in chunks of device memory, which requests share by reference.

A chunk holds CHUNK_ROWS rows of every layer: dtype [2 x layers, Hkv, CHUNK_ROWS, D]. Chunks are pieces of slabs. Slabs
are allocated as caches grow and are never moved, so that no row is copied when a cache grows. A chunk is free once
nothing refers to it. Rows that a later request may begin with are never changed. The request that computed them appends
its next rows in the same chunk. Any other request gets a copy of the chunk first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count as counted

from lopa.runtime.cuda_kernels.attention_tasks import CHUNK_ROWS
from lopa.runtime.errors import DeviceMemoryError

_MIN_CHUNKS = 8
"""Least chunks of a slab."""
_SHARE = 16
"""A slab has this part of all chunks, so that at most this part is allocated in vain."""


@dataclass(eq=False)
class _Slab:
    address: int
    chunks: int
    free: list[int] = field(default_factory=list)
    """Addresses of free chunks."""


_numbers = counted(1)


class Chunk:
    """One chunk. Its memory may be reused when the object is deleted, on any thread."""

    def __init__(self, slab: _Slab, owner: int) -> None:
        self._slab = slab
        self.address = slab.free.pop()
        self.number, self.owner = next(_numbers), owner
        """Number of this object, and of the request that computes the rows."""
        self.kept = 0
        """Number of leading rows that later requests may begin with."""
        self.origin = (0, 0)
        """Number of a chunk with the same leading rows, and how many."""

    def __del__(self) -> None:
        self._slab.free.append(self.address)

    def continues(self, other: "Chunk", rows: int) -> bool:
        """Return True if the first `rows` rows are known to be those of another chunk."""
        return self is other or (self.origin[0] == other.number and self.origin[1] >= rows)


@dataclass(frozen=True)
class ChunkSpan:
    """Some rows of one chunk."""

    chunk: Chunk
    first: int
    count: int


@dataclass(frozen=True, eq=False)
class ChunkRows:
    """Committed rows of a request, which later requests may begin with (KeptRows)."""

    runs: Sequence[ChunkSpan]

    @property
    def count(self) -> int:
        """Number of rows."""
        return sum(run.count for run in self.runs)


class ChunkPool:
    """All chunks of one device."""

    def __init__(
        self, chunk_bytes: int, allocate: Callable[[int], int], free: Callable[[int], None], device: str
    ) -> None:
        """Allocate the first slab. `allocate` raises MemoryError if memory is full."""
        self.chunk_bytes = chunk_bytes
        self._allocate, self._free, self._device = allocate, free, device
        self._slabs: list[_Slab] = []
        self._grow(0)
        self.base = self._slabs[0].address
        """Address of the first slab, which stays."""

    @property
    def total(self) -> int:
        """Number of chunks."""
        return sum(slab.chunks for slab in self._slabs)

    @property
    def free(self) -> int:
        """Number of free chunks."""
        return sum(len(slab.free) for slab in self._slabs)

    def take(self, owner: int, count: int) -> list[Chunk]:
        """Return `count` new chunks. Raises DeviceMemoryError, without taking any, if memory is full."""
        while self.free < count:
            self._grow(owner)
        return [Chunk(next(slab for slab in self._slabs if slab.free), owner) for _ in range(count)]

    @property
    def can_shrink(self) -> bool:
        """True if more than half of all chunks are free, and a whole slab besides the first."""
        return 2 * self.free > self.total and any(len(slab.free) == slab.chunks for slab in self._slabs[1:])

    def shrink(self) -> None:
        """Free unused slabs while `can_shrink`. No work that is noted but not enqueued may use them."""
        while self.can_shrink:
            slab = next(slab for slab in reversed(self._slabs) if len(slab.free) == slab.chunks)
            self._slabs.remove(slab)
            self._free(slab.address)

    def _grow(self, owner: int) -> None:
        """Add a slab for a request. If memory for its usual size is missing, it has one chunk."""
        wanted = max(_MIN_CHUNKS, self.total // _SHARE)
        for chunks in (wanted, 1):
            try:
                address = self._allocate(chunks * self.chunk_bytes)
            except MemoryError:
                continue
            addresses = range(address, address + chunks * self.chunk_bytes, self.chunk_bytes)
            self._slabs.append(_Slab(address, chunks, list(reversed(addresses))))
            return
        raise DeviceMemoryError(self._device, owner, CHUNK_ROWS)


class ChunkedCache:
    """The cache of one request."""

    def __init__(self, request: int, pool: ChunkPool) -> None:
        self._request, self._pool = request, pool
        self.chunks: list[Chunk] = []
        self.length = 0
        """Number of committed rows."""

    def extend(self, count: int) -> tuple[list[ChunkSpan], ChunkSpan | None]:
        """Add `count` rows. Return their places, and rows that have to be copied to the start of the last chunk before,
        if any.

        Raises DeviceMemoryError; the cache is then as before.
        """
        end, used = self.length + count, self.length % CHUNK_ROWS
        last = self.chunks[-1] if used and count else None
        is_shared = last is not None and (
            last.owner != self._request or last.kept > used or any(last is each for each in self.chunks[:-1])
        )
        new = self._pool.take(self._request, -(-end // CHUNK_ROWS) - len(self.chunks) + is_shared)
        copied = None
        if last is not None and is_shared:
            copied, self.chunks[-1] = ChunkSpan(last, 0, used), new.pop()
            self.chunks[-1].origin = last.number, used
        elif last is not None:
            last.origin = last.origin[0], min(last.origin[1], used)
        self.chunks += new
        runs = list(self._runs(self.length, count))
        self.length = end
        return runs, copied

    def shorten(self, count: int) -> None:
        """Drop the rows after the first `count`."""
        del self.chunks[-(-count // CHUNK_ROWS) :]
        self.length = count

    def keep(self, start: int, count: int) -> ChunkRows:
        """Return committed rows for later requests."""
        runs = list(self._runs(start, count))
        for run in runs:
            run.chunk.kept = max(run.chunk.kept, run.first + run.count)
        return ChunkRows(runs)

    def share(self, run: ChunkSpan) -> bool:
        """Append kept rows by reference. Return False if the rows before them in their chunk may be others."""
        used = self.length % CHUNK_ROWS
        if run.first != used or (used and not run.chunk.continues(self.chunks[-1], used)):
            return False
        self.chunks[self.length // CHUNK_ROWS :] = [run.chunk]
        self.length += run.count
        return True

    def _runs(self, start: int, count: int) -> Iterator[ChunkSpan]:
        """Yield the places of rows, whose chunks are there."""
        end = start + count
        while start < end:
            first = start % CHUNK_ROWS
            found = min(CHUNK_ROWS - first, end - start)
            yield ChunkSpan(self.chunks[start // CHUNK_ROWS], first, found)
            start += found
