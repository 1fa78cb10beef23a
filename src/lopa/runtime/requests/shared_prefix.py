"""One request's use of the tree of prefixes: the blocks that it found, and those that it adds."""

from collections.abc import Callable

import numpy as np

from lopa.runtime.contract import CacheRows, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.requests.prefix_reuse import PrefixReuse
from lopa.runtime.requests.prefix_tree import PrefixTree

PREFIX_CACHE_TOKENS = 4096
"""Default limit of stored tokens: 235 MB of Dream-7B in 16 bits, 10 MB of the tiny model in 32 bits."""


class SharedPrefix:
    """The blocks at the start of a request's tokens that are in the tree, from its admission to its end."""

    def __init__(self, tree: PrefixTree, reuse: PrefixReuse | None, prompt: Int64) -> None:
        """Find the first blocks of `prompt` [n]; None for a request that shares nothing."""
        self._tree, self._reuse = tree, reuse
        self._path = None if reuse is None else tree.acquire(reuse.key, reuse.blocks(prompt))
        self.tokens = 0 if self._path is None else self._path.tokens
        """Number of prompt tokens whose rows were found."""
        self.last: RowStatistics | None = None if self._path is None else self._path.last
        """[K]: statistics of the last row found, if they are stored with it."""
        self._end = self.tokens
        """Position behind the last row that was found or stored, or that waits for its block to be complete."""
        self._ids = np.empty(0, np.int64)
        self._rows: CacheRows | None = None
        """Rows of the positions `_ids`, which are before `_end`, in a block that is not complete yet."""

    def rows(self) -> CacheRows:
        """Return the rows that were found, of which there is at least one."""
        assert self._path is not None
        return self._path.rows()

    def store(
        self, start: int, ids: Int64, read_rows: Callable[[], CacheRows], last: RowStatistics | None = None
    ) -> None:
        """Store the blocks that the rows of finished blocks at position `start`, computed from `ids` [n], complete.

        `read_rows` is called only if some row is new, and returns a copy of the rows. `last` belongs to the last row of
        a prompt that is one block. Nothing is stored anymore once used blocks leave no space, or if the rows are not
        adjacent to the ones before.
        """
        if self._reuse is None or self._path is None:
            return
        if start != self._end or (self._reuse.whole_prompt and start):
            self._stop()
            return
        self._end += len(ids)
        size = self._reuse.block
        ids, place = np.concatenate([self._ids, ids]), 0
        while place + size <= len(ids) and self._tree.follow(self._path, ids[place : place + size].tobytes()):
            place += size
        if place == len(ids):
            self._ids, self._rows = ids[:0], None
            return
        if not self._tree.has_space(size):
            self._stop()
            return
        rows = read_rows() if self._rows is None else joined_rows(self._rows, read_rows())
        while place + size <= len(ids):
            if not self._tree.has_space(size):
                self._stop()
                return
            block = slice(place, place + size)
            part = rows if rows.count == size else sliced_rows(rows, block)
            self._tree.add(self._path, ids[block].tobytes(), part, last if self._reuse.whole_prompt else None)
            place += size
        self._ids = ids[place:]
        self._rows = sliced_rows(rows, slice(place, None)) if place < len(ids) else None

    def release(self) -> None:
        """End the use of the blocks. This may be called more than once."""
        self._stop()
        if self._path is not None:
            self._tree.release(self._path)
            self._path = None

    def _stop(self) -> None:
        """Store nothing from now on. The blocks stay in use."""
        self._reuse, self._ids, self._rows = None, self._ids[:0], None


def joined_rows(first: CacheRows, second: CacheRows) -> CacheRows:
    """Return the rows of `first` and `second` in one piece."""
    pairs = zip(first.layers, second.layers, strict=True)
    return CacheRows(tuple(np.concatenate(pair, axis=1) for pair in pairs))


def sliced_rows(rows: CacheRows, part: slice) -> CacheRows:
    """Return a copy of some rows, so that the memory of the others can be freed."""
    return CacheRows(tuple(array[:, part].copy() for array in rows.layers))
