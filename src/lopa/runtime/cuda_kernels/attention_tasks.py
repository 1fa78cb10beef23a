"""Work of a forward's attention on CUDA, as lists that its kernels read (operators.cpp).

A task is a tile of packed rows of one request, and a part of its prefix. The last part also has the tile's windows.
Tiles and parts depend on the request alone, so batch mates change no result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Int64, tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError

PAIRS = 64
"""Rows x query heads of a group per task: the kernel's tile. Larger groups have no kernel."""
_PART_COLUMNS = 128
"""Granularity of parts of the prefix, a multiple of the kernel's columns per step."""
_PROGRAMS = 128
"""Programs of a request from which its prefix is not split: about as many as a large GPU runs at once."""
_COLUMNS_PER_PROGRAM = 4
"""Least columns of a part for each program of the request: parts of many programs write more sums than they save."""
_CACHED_SHAPES = 256
_MAX_MASK = 2**31 - 1

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class AttentionHeads:
    """Sizes of a layer's attention."""

    heads: int
    kv_heads: int
    size: int


@dataclass(frozen=True, eq=False)
class AttentionWork:
    """Lists of one forward. Offsets count elements of the array that they point into."""

    rows: Int32
    """[rows, 3]: first packed row of the row's window, length of the window, offset of the row in the window mask."""
    tasks: Int32
    """[tasks, 8]: first row and rows; first and end column of the prefix; first and end packed row of the windows.
    Then follow the first chunk and the offset in the prefix mask. Several tasks of the same rows are neighbors, and
    their rows are negative.
    """
    merges: Int32
    """[merges, 4]: first row, rows, first task, tasks; one for every tile with several tasks."""
    chunks: Int64
    """[chunks]: offset of each chunk of a cache in an array of past keys or values."""


def attention_work(lengths: Sequence[int], sizes: Sizes, heads: AttentionHeads) -> AttentionWork:
    """Return the lists of a padded forward in which request r has `lengths[r]` cached rows of `sizes.prefix`.

    Each request's cache is one chunk. Tasks and merges that are not used are zeros, which do nothing. Raises
    BadInputError for a window mask with too many entries for int32.
    """
    requests, rows = sizes.requests, sizes.branches * sizes.window
    if requests * rows * sizes.window > _MAX_MASK:
        raise BadInputError(
            f"a forward with a window mask of {requests} x {sizes.branches} x {sizes.window} x {sizes.window}",
            expected=f"at most {_MAX_MASK} entries for the kernels' offsets",
            remedy="decode fewer requests at once, or shorten the prompts",
        )
    task_count, merge_count = work_sizes(sizes, heads)
    tasks, merges = np.zeros((task_count, 8), np.int32), np.zeros((merge_count, 4), np.int32)
    first_task = first_merge = 0
    for request, length in enumerate(lengths):
        one, merged = _work_of_request(sizes.branches, sizes.window, tiles(length) if length else 0, heads)
        end_task, end_merge = first_task + len(one), first_merge + len(merged)
        origin = request * rows
        tasks[first_task:end_task] = one + np.array([origin, 0, 0, 0, origin, origin, request, request * sizes.prefix])
        merges[first_merge:end_merge] = merged + np.array([origin, 0, first_task, 0])
        first_task, first_merge = end_task, end_merge
    row, window = np.arange(requests * rows), sizes.window
    return AttentionWork(
        np.stack([row // window * window, np.full_like(row, window), row * window], axis=1).astype(np.int32),
        tasks,
        merges,
        np.arange(requests, dtype=np.int64) * (heads.kv_heads * sizes.prefix * heads.size),
    )


def work_sizes(sizes: Sizes, heads: AttentionHeads) -> tuple[int, int]:
    """Return the most tasks and merges that a forward of these sizes has."""
    count = len(_tiles_of_rows(sizes.branches * sizes.window, heads))
    parts = _most_parts(sizes.prefix, count * heads.kv_heads)
    return sizes.requests * count * parts, sizes.requests * count * (parts > 1)


@lru_cache(maxsize=_CACHED_SHAPES)
def _work_of_request(branches: int, window: int, prefix: int, heads: AttentionHeads) -> tuple[Int32, Int32]:
    """Return the tasks and merges of one request whose first packed row is 0."""
    row_tiles = _tiles_of_rows(branches * window, heads)
    most = _most_parts(prefix, len(row_tiles) * heads.kv_heads)
    size = max(1, -(-prefix // (most * _PART_COLUMNS))) * _PART_COLUMNS
    parts = [(begin, min(begin + size, prefix)) for begin in range(0, max(prefix, 1), size)]
    tasks: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    for first, end in row_tiles:
        if len(parts) > 1:
            merges.append((first, end - first, len(tasks), len(parts)))
        windows = (first // window * window, -(-end // window) * window)
        for part in parts:
            count = end - first if len(parts) == 1 else first - end
            tasks.append((first, count, *part, *(windows if part is parts[-1] else (0, 0)), 0, 0))
    return np.array(tasks, np.int32), np.array(merges, np.int32).reshape(-1, 4)


def _tiles_of_rows(rows: int, heads: AttentionHeads) -> list[tuple[int, int]]:
    """Return first and end rows of tiles with at most PAIRS pairs of a row and a query head."""
    step = PAIRS // (heads.heads // heads.kv_heads)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]


def _most_parts(prefix: int, programs: int) -> int:
    """Return into how many parts a prefix is split at most, to make about _PROGRAMS programs out of `programs`."""
    columns = max(_PART_COLUMNS, _COLUMNS_PER_PROGRAM * programs)
    return max(1, min(-(-_PROGRAMS // max(programs, 1)), prefix // columns))
