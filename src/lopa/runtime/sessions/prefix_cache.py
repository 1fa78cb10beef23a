"""The committed key and value rows of a request, in host memory, and the stack of several requests for one forward.

Knows arrays only: which rows are worth keeping, and who computes them, is decided elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import TILE, Bool, Rows, tiles
from lopa.runtime.contract.stored_floats import stored_dtype


@dataclass(frozen=True, eq=False)
class Prefix:
    """What a forward reads. The same object means the same memory; its contents change when rows are committed."""

    block: Rows
    """dtype [arrays, R, Hkv, P, D], zero where nothing is committed: all arrays, in the order of contract.past_names.

    A portable graph takes it whole, which is why it is one piece of memory.
    """
    mask: Bool
    """[R, P], true for committed rows."""

    @cached_property
    def arrays(self) -> tuple[Rows, ...]:
        """Views of `block`, each dtype [R, Hkv, P, D] and C-contiguous."""
        return tuple(self.block)


@dataclass(frozen=True)
class CacheShape:
    """Sizes that all prefix caches of one bundle share."""

    arrays: int
    """Two for each layer: key and value."""
    kv_heads: int
    head_size: int
    dtype: np.dtype[Any]
    """As stored_dtype gives it."""

    def zeros(self, requests: int, rows: int) -> Prefix:
        """An empty prefix of `rows` rows for each request; zeros, since a NaN in a masked row would leak."""
        shape = (self.arrays, requests, self.kv_heads, rows, self.head_size)
        return Prefix(block=np.zeros(shape, self.dtype), mask=np.zeros((requests, rows), np.bool_))


def cache_shape_from_manifest(manifest: Manifest) -> CacheShape:
    """Cache sizes of a bundle; its rows have the type of its weights."""
    sizes = manifest.dimensions
    return CacheShape(2 * sizes.layers, sizes.kv_heads, sizes.head_size, stored_dtype(manifest.dtype))


def check_rows(shape: CacheShape, rows: Sequence[Rows]) -> None:
    """Raise ValueError unless there is one array [Hkv, n, D] for each of a cache's, all with one n and its type."""
    count = rows[0].shape[1] if rows and rows[0].ndim == 3 else 0
    expected = (shape.kv_heads, count, shape.head_size)
    found = [(array.shape, array.dtype.name) for array in rows]
    if found != [(expected, shape.dtype.name)] * shape.arrays:
        raise ValueError(
            f"received rows {found}, expected {shape.arrays} arrays of {shape.dtype.name} "
            f"[{shape.kv_heads}, n, {shape.head_size}] with one n"
        )


class PrefixCache:
    """The prefix of one request. Its memory grows by tiles, so that forwards see few prefix lengths."""

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._prefix = shape.zeros(1, TILE)
        self._length = 0

    @property
    def prefix(self) -> Prefix:
        """The rows with R = 1. Another object after the cache has grown, the same one otherwise."""
        return self._prefix

    @property
    def length(self) -> int:
        """Committed rows."""
        return self._length

    @property
    def capacity(self) -> int:
        """Rows of memory, committed or zero: a multiple of TILE."""
        return int(self._prefix.mask.shape[1])

    def append(self, rows: Sequence[Rows]) -> None:
        """Copy rows behind the committed ones: one array [Hkv, n, D] for each cache array, all with the same n.

        Raises ValueError when the number of arrays, a shape or a type differs; nothing is changed then.
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

    def shorten(self, length: int) -> None:
        """Forget the rows behind the first `length`, and the tiles that nothing is left in."""
        forgotten = self._length
        self._length = length
        if tiles(length) < self.capacity:
            self._resize(tiles(length))  # so that a forward sees what it would if the rows had never been there
        else:
            _forget_rows(self._prefix, 0, length, forgotten)

    def _resize(self, capacity: int) -> None:
        resized = self._shape.zeros(1, capacity)
        _copy_rows(resized, 0, self._prefix, 0, self._length)
        self._prefix = resized


class PrefixStack:
    """The prefixes of several requests, padded to the longest, as the arrays of one forward.

    Kept between forwards: while the requests and the longest capacity stay the same, only newly committed rows are
    copied.
    """

    def __init__(self, shape: CacheShape) -> None:
        self._shape = shape
        self._caches: tuple[PrefixCache, ...] = ()
        self._copied: list[int] = []
        self._prefix = shape.zeros(0, TILE)

    def prefix(self, caches: Sequence[PrefixCache]) -> Prefix:
        """The prefixes of `caches`, in this order; that of a single one without a copy."""
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
        """Forget what was copied of `cache` behind its first `length` rows; it may be none of the stack's."""
        for slot, each in enumerate(self._caches):
            if each is cache and length < self._copied[slot]:
                _forget_rows(self._prefix, slot, length, self._copied[slot])
                self._copied[slot] = length


def _copy_rows(target: Prefix, slot: int, source: Prefix, start: int, end: int) -> None:
    """Copy rows start..end of the single request in `source` to request `slot` of `target`."""
    if start == end:
        return
    target.block[:, slot, :, start:end] = source.block[:, 0, :, start:end]
    target.mask[slot, start:end] = True


def _forget_rows(target: Prefix, slot: int, start: int, end: int) -> None:
    """Make rows start..end of request `slot` what they were before anything was committed there."""
    target.block[:, slot, :, start:end] = 0
    target.mask[slot, start:end] = False
