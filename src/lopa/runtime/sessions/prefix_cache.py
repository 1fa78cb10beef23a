"""Committed key and value rows of a request in host memory, and stacks of several requests for one forward."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TILE, Bool, CacheRows, Rows, stored_dtype, tiles


@dataclass(frozen=True, eq=False)
class Prefix:
    """Prefix arrays of a forward. An object always has the same memory; commits change its contents."""

    block: Rows
    """All arrays in the order of contract.past_names, dtype [arrays, R, Hkv, P, D]. Rows without a commit are zero.

    It is one piece of memory, because a portable graph has a single input for it.
    """
    mask: Bool
    """Mask [R, P], true for committed rows."""

    @cached_property
    def arrays(self) -> tuple[Rows, ...]:
        """Views of `block`, each dtype [R, Hkv, P, D] and C-contiguous."""
        return tuple(self.block)


@dataclass(frozen=True)
class CacheShape:
    """Sizes shared by all prefix caches of a bundle."""

    arrays: int
    """Number of arrays: two per layer, key and value."""
    kv_heads: int
    head_size: int
    dtype: np.dtype[Any]
    """Type as returned by stored_dtype."""
    is_one_input: bool = False
    """True if graphs take all arrays as one input, as portable ones do."""

    def zeros(self, requests: int, rows: int) -> Prefix:
        """Return an empty prefix of `rows` rows per request. It is zeroed, because a NaN in a masked row would
        spread.
        """
        shape = (self.arrays, requests, self.kv_heads, rows, self.head_size)
        return Prefix(block=np.zeros(shape, self.dtype), mask=np.zeros((requests, rows), np.bool_))


def cache_shape_from_manifest(manifest: Manifest) -> CacheShape:
    """Return the cache sizes of a bundle. Rows have the type of its weights."""
    sizes = manifest.dimensions
    arrays, dtype, is_portable = 2 * sizes.layers, stored_dtype(manifest.dtype), manifest.dialect == "portable"
    return CacheShape(arrays, sizes.cache_heads, sizes.cache_head_size, dtype, is_portable)


def check_rows(shape: CacheShape, rows: Sequence[Rows]) -> None:
    """Raise ValueError unless `rows` has the right number of arrays [Hkv, n, D], all with the same n and the right
    type.
    """
    count = rows[0].shape[1] if rows and rows[0].ndim == 3 else 0
    expected = (shape.kv_heads, count, shape.head_size)
    found = [(array.shape, array.dtype.name) for array in rows]
    if found != [(expected, shape.dtype.name)] * shape.arrays:
        raise ValueError(
            f"received rows {found}, expected {shape.arrays} arrays of {shape.dtype.name} "
            f"[{shape.kv_heads}, n, {shape.head_size}] with one n"
        )


class PrefixCache:
    """Prefix of one request. Its memory grows by tiles, so that forwards see few prefix lengths."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._prefix = shape.zeros(1, TILE)
        self._length = 0

    @property
    def prefix(self) -> Prefix:
        """Prefix arrays with R = 1. The object changes only after the cache has grown or shrunk."""
        return self._prefix

    @property
    def length(self) -> int:
        """Number of committed rows."""
        return self._length

    @property
    def capacity(self) -> int:
        """Number of allocated rows, a multiple of TILE."""
        return int(self._prefix.mask.shape[1])

    def append(self, rows: Sequence[Rows]) -> None:
        """Append rows by copying one array [Hkv, n, D] per cache array, all with the same n.

        Raises ValueError for a wrong number of arrays, shape or type. The cache then stays unchanged.
        """
        check_rows(self._shape, rows)
        count = rows[0].shape[1]
        start, end = self._length, self._length + count
        if end > self.capacity:
            self._resize(tiles(end))
        for array, new in zip(self._prefix.arrays, rows, strict=True):
            array[0, :, start:end] = new
        self._prefix.mask[0, start:end] = True
        self._length = end

    def copied_rows(self, start: int, count: int) -> CacheRows:
        """Return a copy of `count` rows from number `start` on."""
        return CacheRows(tuple(self._prefix.block[:, 0, :, start : start + count].copy()))

    def shorten(self, length: int) -> None:
        """Drop the rows after the first `length`, and tiles that become empty."""
        old_length = self._length
        self._length = length
        if tiles(length) < self.capacity:
            self._resize(tiles(length))  # so that a forward sees the same shape as if the rows had never existed
        else:
            _clear_rows(self._prefix, 0, length, old_length)

    def _resize(self, capacity: int) -> None:
        resized = self._shape.zeros(1, capacity)
        _copy_rows(resized, 0, self._prefix, 0, self._length)
        self._prefix = resized


class PrefixStack:
    """Prefixes of several requests, padded to the longest, as the arrays of one forward.

    The stack is kept between forwards. While the requests and the largest capacity stay the same, only newly committed
    rows are copied.
    """

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._caches: tuple[PrefixCache, ...] = ()
        self._copied: list[int] = []
        self._prefix = shape.zeros(0, TILE)

    def prefix(self, caches: Sequence[PrefixCache]) -> Prefix:
        """Return the prefixes of `caches` in this order. A single cache is not copied."""
        if len(caches) == 1:
            return caches[0].prefix
        capacity = max(cache.capacity for cache in caches)
        same = len(caches) == len(self._caches) and all(a is b for a, b in zip(caches, self._caches, strict=True))
        if not same or capacity != self._prefix.mask.shape[1]:
            self._caches = tuple(caches)
            self._copied = [0] * len(caches)
            self._prefix = self._shape.zeros(len(caches), capacity)
        for slot, cache in enumerate(caches):
            _copy_rows(self._prefix, slot, cache.prefix, self._copied[slot], cache.length)
            self._copied[slot] = cache.length
        return self._prefix

    def shorten(self, cache: PrefixCache, length: int) -> None:
        """Clear the copied rows of `cache` after the first `length`. A cache outside the stack is ignored."""
        for slot, each in enumerate(self._caches):
            if each is cache and length < self._copied[slot]:
                _clear_rows(self._prefix, slot, length, self._copied[slot])
                self._copied[slot] = length


def _copy_rows(target: Prefix, slot: int, source: Prefix, start: int, end: int) -> None:
    """Copy rows start..end of the only request in `source` to request `slot` of `target`."""
    if start == end:
        return
    target.block[:, slot, :, start:end] = source.block[:, 0, :, start:end]
    target.mask[slot, start:end] = True


def _clear_rows(target: Prefix, slot: int, start: int, end: int) -> None:
    """Reset rows start..end of request `slot` to the uncommitted state."""
    target.block[:, slot, :, start:end] = 0
    target.mask[slot, start:end] = False
