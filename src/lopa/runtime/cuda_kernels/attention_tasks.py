"""Work of a forward's attention on CUDA, as lists in one array that its kernels read (operators.cpp).

A task is a tile of packed rows of one request, and a part of its prefix. The last part also has the tile's windows.
Tiles and parts depend on the request alone, so batch mates change no result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import TILE
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.errors import BadInputError

CHUNK_ROWS = TILE
"""Rows of a chunk of a cache."""
PAIRS = 64
"""Rows x query heads of a group per task: the kernel's tile. Larger groups have no kernel."""
_HEADER_WORDS = 8
_PART_COLUMNS = 128
"""Granularity of parts of the prefix, a multiple of CHUNK_ROWS."""
_PROGRAMS = 128
"""Programs of a request from which its prefix is not split: about as many as a large GPU runs at once."""
_COLUMNS_PER_PROGRAM = 4
"""Least columns of a part for each program of the request: parts of many programs write more sums than they save."""
_CACHED_REQUESTS = 512
_CACHED_FORWARDS = 64
_MAX_MASK = 2**31 - 1
_ROW, _MASK, _CHUNK, _PART, _NONE = range(5)
"""Columns of the table of first places: packed row, byte of the mask, chunk, part, and zero."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class AttentionHeads:
    """Sizes of a layer's attention."""

    heads: int
    kv_heads: int
    size: int


@dataclass(frozen=True, eq=False)
class AttentionWork:
    """Lists of one forward, which depend on no layer."""

    words: Int32
    """Number of tasks, number of merges, then the first word of each list: rows, tasks, merges, chunks and mask.

    - Rows [N, 3]: first packed row of the row's window, length of the window, offset of the row's line in the mask.
    - Tasks [tasks, 8]: first row and rows; first and end column of the prefix. Then first and end packed row of the
      windows, first chunk, place in the scratch memory. Tasks of the same rows are parts, with a negative number of
      rows, side by side.
    - Merges [merges, 4]: first row, rows, first part, number of parts. There is one for every tile with parts.
    - Chunks, int64 at an even word: offset of each chunk of the requests' caches.
    - Mask, bytes: PackedBatch.mask, at least two words.
    """
    scratch: int
    """Numbers, float32, of scratch memory that the parts need."""


@dataclass(frozen=True, eq=False)
class _RequestWork:
    """Lists of one request as if it were alone."""

    rows: Int32
    tasks: Int32
    merges: Int32
    mask: int
    """Bytes of the mask."""
    parts: int


@dataclass(frozen=True, eq=False)
class _Lists:
    """Lists of a forward without its mask, and with zeros in place of chunks."""

    words: Int32
    chunks: int
    """First word of the chunks."""
    scratch: int


def attention_work(
    batch: PackedBatch, rows: int, prefixes: Sequence[int], chunks: Sequence[Sequence[int]], heads: AttentionHeads
) -> AttentionWork:
    """Return the lists of a forward of `rows` packed rows, of which those after the batch's are padding.

    Request r has `prefixes[r]` cached rows, in chunks of CHUNK_ROWS rows at the offsets `chunks[r]`. Padding rows see
    nothing, so their results are zeros. Raises BadInputError for masks with too many entries for int32.
    """
    if batch.mask.size > _MAX_MASK:
        raise BadInputError(
            f"a forward with window masks of {batch.mask.size} entries",
            expected=f"at most {_MAX_MASK} entries for the kernels' offsets",
            remedy="decode fewer requests at once, or shorten the prompts",
        )
    if any(prefix > CHUNK_ROWS * len(own) for prefix, own in zip(prefixes, chunks, strict=True)):
        raise ValueError(f"received {[*map(len, chunks)]} chunks, expected enough for the rows {[*prefixes]}")
    lengths, ends = batch.lengths.tolist(), [0, *batch.windows.cumsum().tolist()]
    requests = tuple(
        (tuple(lengths[first:end]), prefix, len(own))
        for (first, end), prefix, own in zip(pairwise(ends), prefixes, chunks, strict=True)
    )
    lists = _lists(requests, rows - len(batch.input_ids), heads)
    words = np.empty(len(lists.words) + max(2, -(-batch.mask.size // 4)), np.int32)
    words[: len(lists.words)] = lists.words
    words[lists.chunks : len(lists.words)].view(np.int64)[:] = [*chain.from_iterable(chunks)]
    words[len(lists.words) :].view(np.bool_)[: batch.mask.size] = batch.mask
    return AttentionWork(words, lists.scratch)


@lru_cache(maxsize=_CACHED_FORWARDS)
def _lists(requests: tuple[tuple[tuple[int, ...], int, int], ...], padding: int, heads: AttentionHeads) -> _Lists:
    """Return the lists of a forward. Each request has lengths of windows, cached rows and chunks."""
    works = [_work_of_request(lengths, prefix, heads) for lengths, prefix, _ in requests] + [_padding(padding, heads)]
    sizes = [
        (len(each.rows), each.mask, chunks, each.parts, 0)
        for each, chunks in zip(works, (*(chunks for _, _, chunks in requests), 0), strict=True)
    ]
    table = np.array(sizes)
    firsts = table.cumsum(axis=0) - table
    lists = [
        _moved([each.rows for each in works], firsts[:, [_ROW, _NONE, _MASK]]),
        _moved([each.tasks for each in works], firsts[:, [_ROW, *[_NONE] * 3, _ROW, _ROW, _CHUNK, _PART]]),
        _moved([each.merges for each in works], firsts[:, [_ROW, _NONE, _PART, _NONE]]),
    ]
    places = np.cumsum([_HEADER_WORDS, *(each.size for each in lists)])
    chunks = int(places[-1] + places[-1] % 2)
    end = chunks + 2 * sum(count for _, _, count in requests)
    words = np.zeros(end, np.int32)
    words[:7] = [len(lists[1]), len(lists[2]), *places[:-1], chunks, end]
    words[_HEADER_WORDS : places[-1]] = np.concatenate([each.ravel() for each in lists])
    parts = sum(each.parts for each in works)
    return _Lists(words, chunks, parts * heads.kv_heads * PAIRS * (heads.size + 2))


def _moved(lists: Sequence[Int32], firsts: npt.NDArray[np.int64]) -> Int32:
    """Return the lists one after another, each moved by its row of `firsts`."""
    moved: Int32 = np.concatenate(lists) + firsts.repeat([*map(len, lists)], axis=0).astype(np.int32)
    return moved


@lru_cache(maxsize=_CACHED_REQUESTS)
def _work_of_request(lengths: tuple[int, ...], prefix: int, heads: AttentionHeads) -> _RequestWork:
    """Return the work of a request with windows of these lengths."""
    windows = np.array(lengths)
    ends, squares = windows.cumsum(), windows**2
    starts = ends - windows
    window = np.arange(len(windows)).repeat(windows)
    line = (squares.cumsum() - squares)[window] + (np.arange(len(window)) - starts[window]) * windows[window]
    row_tiles = _tiles_of_rows(len(window), heads)
    most = _most_parts(prefix, len(row_tiles) * heads.kv_heads)
    size = max(1, -(-prefix // (most * _PART_COLUMNS))) * _PART_COLUMNS
    parts = [(begin, min(begin + size, prefix)) for begin in range(0, max(prefix, 1), size)]
    tasks: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    for first, end in row_tiles:
        if len(parts) > 1:
            merges.append((first, end - first, len(tasks), len(parts)))
        own = (int(starts[window[first]]), int(ends[window[end - 1]]))
        for part in parts:
            count = end - first if len(parts) == 1 else first - end
            tasks.append((first, count, *part, *(own if part is parts[-1] else (0, 0)), 0, len(tasks)))
    return _RequestWork(
        np.stack([starts[window], windows[window], line], axis=1).astype(np.int32),
        np.array(tasks, np.int32),
        np.array(merges, np.int32).reshape(-1, 4),
        int(squares.sum()),
        len(tasks) if merges else 0,
    )


@lru_cache(maxsize=_CACHED_REQUESTS)
def _padding(rows: int, heads: AttentionHeads) -> _RequestWork:
    """Return the work of rows that see nothing."""
    tasks = [(first, end - first, 0, 0, 0, 0, 0, 0) for first, end in _tiles_of_rows(rows, heads)]
    none = np.zeros((0, 4), np.int32)
    return _RequestWork(np.zeros((rows, 3), np.int32), np.array(tasks, np.int32).reshape(-1, 8), none, 0, 0)


def _tiles_of_rows(rows: int, heads: AttentionHeads) -> list[tuple[int, int]]:
    """Return first and end rows of tiles with at most PAIRS pairs of a row and a query head."""
    step = PAIRS // (heads.heads // heads.kv_heads)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]


def _most_parts(prefix: int, programs: int) -> int:
    """Return into how many parts a prefix is split at most, to make about _PROGRAMS programs out of `programs`."""
    columns = max(_PART_COLUMNS, _COLUMNS_PER_PROGRAM * programs)
    return max(1, min(-(-_PROGRAMS // max(programs, 1)), prefix // columns))
