"""Committed key and value rows of a request in device memory, and stacks of several requests for a forward."""

from collections.abc import Callable, Sequence

from lopa.runtime.accelerator.device_memory import (
    BufferSet,
    DeviceMemory,
    RowPlace,
    copy_rows,
    fill_rows_zero,
    upload_rows,
)
from lopa.runtime.contract import Rows
from lopa.runtime.sessions.prefix_cache import CacheShape


def row_bytes(shape: CacheShape) -> int:
    """Return the bytes of one row of one head."""
    return shape.head_size * shape.dtype.itemsize


def buffers_of_rows(memory: DeviceMemory, shape: CacheShape, requests: int, rows: int) -> BufferSet:
    """Allocate one uninitialized array [requests, Hkv, rows, D] per cache array, as the graph takes them."""
    size = requests * shape.kv_heads * rows * row_bytes(shape)
    return BufferSet(memory, [size] * shape.arrays, is_joined=shape.is_one_input or memory.packs_arrays)


def place_of_rows(buffers: BufferSet, shape: CacheShape, slot: int, capacity: int, start: int) -> RowPlace:
    """Return the place of row `start` of request `slot` in arrays [R, Hkv, capacity, D]."""
    step = capacity * row_bytes(shape)
    offset = slot * shape.kv_heads * step + start * row_bytes(shape)
    return RowPlace(tuple(buffer.address + offset for buffer in buffers.buffers), step)


class DeviceCache:
    """Prefix of one request, as arrays [Hkv, capacity, D] in device memory. Uncommitted rows are zero.

    Nothing is allocated before the first row. `capacity_for` returns the capacity for a number of rows.
    """

    def __init__(self, memory: DeviceMemory, shape: CacheShape, capacity_for: Callable[[int], int]) -> None:
        self._memory = memory
        self._shape = shape
        self._capacity_for = capacity_for
        self._buffers: BufferSet | None = None
        self.length = 0
        """Number of committed rows."""
        self.capacity = 0

    @property
    def buffers(self) -> BufferSet:
        """Arrays [1, Hkv, capacity, D] of a non-empty cache, in the order of contract.past_names."""
        assert self._buffers is not None
        return self._buffers

    def place(self, start: int) -> RowPlace:
        """Return the place of row `start` in a non-empty cache."""
        return place_of_rows(self.buffers, self._shape, 0, self.capacity, start)

    def append(self, source: RowPlace, count: int) -> None:
        """Append rows from this device."""
        if count:
            copy_rows(self._memory, self._grow(count), source, count * row_bytes(self._shape), self._heads)
            self.length += count

    def append_from_host(self, rows: Sequence[Rows]) -> None:
        """Append one host array [Hkv, n, D] per cache array, all with the same n and of the cache's type."""
        count = rows[0].shape[1]
        if count:
            upload_rows(self._memory, self._grow(count), rows)
            self.length += count

    def shorten(self, length: int) -> None:
        """Drop the rows after the first `length`, and memory that is no longer needed."""
        if not length:
            self.free()
            return
        dropped, self.length = self.length - length, length
        capacity = self._capacity_for(length)
        if capacity < self.capacity:
            self._resize(capacity)  # so that a shape bucket for fewer rows uses this memory without a copy
        else:
            fill_rows_zero(self._memory, self.place(length), dropped * row_bytes(self._shape), self._heads)

    def free(self) -> None:
        """Free the memory. The cache is then empty."""
        if self._buffers is not None:
            self._buffers.free()
        self._buffers = None
        self.length = self.capacity = 0

    @property
    def _heads(self) -> int:
        return self._shape.kv_heads

    def _grow(self, count: int) -> RowPlace:
        """Return the place of the next `count` rows, growing if necessary."""
        if self.length + count > self.capacity:
            self._resize(self._capacity_for(self.length + count))
        return self.place(self.length)

    def _resize(self, capacity: int) -> None:
        resized = buffers_of_rows(self._memory, self._shape, 1, capacity)
        resized.fill_zero()
        if self._buffers is not None:
            target = place_of_rows(resized, self._shape, 0, capacity, 0)
            copy_rows(self._memory, target, self.place(0), self.length * row_bytes(self._shape), self._heads)
            self._buffers.free()
        self._buffers, self.capacity = resized, capacity


class StackedCaches:
    """Copies of several requests' caches in the shape of a shape bucket: arrays [requests, Hkv, rows, D], padded with
    zeros.

    They are kept between forwards. While the caches stay the same, only newly committed rows are copied.
    """

    def __init__(self, memory: DeviceMemory, shape: CacheShape, requests: int, rows: int) -> None:
        self._memory = memory
        self._shape = shape
        self._rows = rows
        self._buffers = buffers_of_rows(memory, shape, requests, rows)
        self._buffers.fill_zero()
        self._caches: tuple[DeviceCache, ...] = ()
        self._copied: list[int] = []

    def stacked(self, caches: Sequence[DeviceCache]) -> BufferSet:
        """Return the rows of `caches` in this order, always in the same memory."""
        if len(caches) != len(self._caches) or any(a is not b for a, b in zip(caches, self._caches, strict=True)):
            if any(self._copied):
                self._buffers.fill_zero()
            self._caches, self._copied = tuple(caches), [0] * len(caches)
        size, heads = row_bytes(self._shape), self._shape.kv_heads
        for slot, cache in enumerate(caches):
            copied, self._copied[slot] = self._copied[slot], cache.length
            if copied < cache.length:
                target = place_of_rows(self._buffers, self._shape, slot, self._rows, copied)
                copy_rows(self._memory, target, cache.place(copied), (cache.length - copied) * size, heads)
        return self._buffers

    def shorten(self, cache: DeviceCache, length: int) -> None:
        """Clear the copied rows of `cache` after the first `length`. A cache outside the stack is ignored."""
        for slot, each in enumerate(self._caches):
            dropped = self._copied[slot] - length
            if each is cache and dropped > 0:
                place = place_of_rows(self._buffers, self._shape, slot, self._rows, length)
                fill_rows_zero(self._memory, place, dropped * row_bytes(self._shape), self._shape.kv_heads)
                self._copied[slot] = length

    def has(self, cache: DeviceCache) -> bool:
        """Return True if rows of the cache were copied here."""
        return any(cache is each for each in self._caches)

    def free(self) -> None:
        """Free the memory."""
        self._buffers.free()
