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

from lopa.runtime.contract import TILE, Bool, Int64
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
_MOVED = ([_ROW, _NONE, _MASK, _NONE], [_ROW, *[_NONE] * 3, _ROW, _ROW, _CHUNK, _PART], [_ROW, _NONE, _PART, _NONE])
"""Columns that move the entries of a request's rows, tasks and merges."""

Int32 = npt.NDArray[np.int32]
_Lists = tuple[Int32, Int32, Int32]
"""Rows, tasks and merges."""
_Request = tuple[tuple[int, ...], int, int]
"""Lengths of a request's windows, its cached rows, and its chunks."""


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
    """All lists in one array, as docs/concepts/contract.md describes it. At least two words follow the chunks."""
    scratch: int
    """Numbers, float32, of scratch memory that the parts need."""


def attention_work(
    batch: PackedBatch, rows: int, prefixes: Sequence[int], chunks: Sequence[Sequence[int]], *heads: AttentionHeads
) -> AttentionWork:
    """Return the lists of a forward of `rows` packed rows, of which those after the batch's are padding.

    Request r has `prefixes[r]` cached rows, in chunks of CHUNK_ROWS rows at the offsets `chunks[r]`. Padding rows see
    nothing, so their results are zeros. Layers with a sliding window have other `heads`, and lists behind those of all
    others. Raises BadInputError for masks with too many entries for int32.
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
    masks = [batch.mask, *([] if batch.canvas is None else [_sliding_mask(batch, batch.canvas.attention_start)])]
    works = [
        _work_of_heads(batch, mask, requests, rows - len(batch.input_ids), chunks, each)
        for mask, each in zip(masks, heads, strict=True)
    ]
    for work in works[:-1]:
        work.words[7] = len(work.words)
    return AttentionWork(np.concatenate([work.words for work in works]), max(work.scratch for work in works))


def _sliding_mask(batch: PackedBatch, start: Int64) -> Bool:
    """Return the windows' masks without positions before the `start` [N] of a row."""
    own = np.split(batch.position_ids, batch.starts[1:])
    positions = np.concatenate([np.tile(each, len(each)) for each in own])
    mask: Bool = batch.mask & (positions >= start.repeat(batch.lengths.repeat(batch.lengths)))
    return mask


def _work_of_heads(
    batch: PackedBatch,
    window_mask: Bool,
    requests: tuple[_Request, ...],
    padding: int,
    chunks: Sequence[Sequence[int]],
    heads: AttentionHeads,
) -> AttentionWork:
    lists, parts = _lists(requests, padding, heads)
    size = len(lists) + max(2, -(-window_mask.size // 4))
    words = np.empty(-(-size // 4) * 4, np.int32)  # lists may follow, which begin at a multiple of 16 bytes
    words[: len(lists)] = lists
    words[lists[5] : len(lists)].view(np.int64)[:] = [*chain.from_iterable(chunks)]
    words[len(lists) :].view(np.bool_)[: window_mask.size] = window_mask
    if batch.canvas is not None:
        words[lists[2] :][3 : 4 * len(batch.input_ids) : 4] = batch.canvas.attention_start
    return AttentionWork(words, parts * heads.kv_heads * PAIRS * (heads.size + 2))


@lru_cache(maxsize=_CACHED_FORWARDS)
def _lists(requests: tuple[_Request, ...], padding: int, heads: AttentionHeads) -> tuple[Int32, int]:
    """Return the words of a forward before its mask, with zeros in place of chunks, and the number of parts."""
    # Lists of requests are for whole tiles of a prefix, since these seldom change. They end with the prefix below.
    works = [_work_of_request(lengths, -(-prefix // TILE) * TILE, heads) for lengths, prefix, _ in requests]
    works.append(_padding(padding, heads))
    sizes = [
        (len(rows), sum(length**2 for length in lengths), chunks, len(tasks) if len(merges) else 0, 0)
        for (rows, tasks, merges), (lengths, _, chunks) in zip(works, requests, strict=False)
    ]
    firsts = np.array([(0,) * 5, *sizes], np.int32).cumsum(axis=0, dtype=np.int32)
    counts = [[*map(len, parts)] for parts in zip(*works, strict=True)]
    lists = [
        np.concatenate(parts) + firsts[:, columns].repeat(count, axis=0)
        for parts, columns, count in zip(zip(*works, strict=True), _MOVED, counts, strict=True)
    ]
    ends = np.repeat([*(prefix for _, prefix, _ in requests), 0], counts[1])
    lists[1][:, 3] = np.minimum(lists[1][:, 3], ends)
    places = np.cumsum([_HEADER_WORDS, *(each.size for each in lists)])
    chunks = places[-1] + places[-1] % 2
    words = np.zeros(chunks + 2 * firsts[-1, _CHUNK], np.int32)
    words[:7] = [len(lists[1]), len(lists[2]), *places[:-1], chunks, len(words)]
    words[_HEADER_WORDS : places[-1]] = np.concatenate([each.ravel() for each in lists])
    return words, int(firsts[-1, _PART])


@lru_cache(maxsize=_CACHED_REQUESTS)
def _work_of_request(lengths: tuple[int, ...], prefix: int, heads: AttentionHeads) -> _Lists:
    """Return the lists of a request with windows of these lengths, as if it were alone. The last part is whole."""
    windows = np.array(lengths)
    ends, squares = windows.cumsum(), windows**2
    starts = ends - windows
    window = np.arange(len(windows)).repeat(windows)
    line = (squares.cumsum() - squares)[window] + (np.arange(len(window)) - starts[window]) * windows[window]
    row_tiles = _tiles_of_rows(len(window), heads)
    most = _most_parts(prefix, len(row_tiles) * heads.kv_heads)
    size = max(1, -(-prefix // (most * _PART_COLUMNS))) * _PART_COLUMNS
    parts = [(begin, begin + size) for begin in range(0, max(prefix, 1), size)]
    tasks: list[tuple[int, ...]] = []
    merges: list[tuple[int, ...]] = []
    for first, end in row_tiles:
        if len(parts) > 1:
            merges.append((first, end - first, len(tasks), len(parts)))
        own = (int(starts[window[first]]), int(ends[window[end - 1]]))
        for part in parts:
            count = end - first if len(parts) == 1 else first - end
            tasks.append((first, count, *part, *(own if part is parts[-1] else (0, 0)), 0, len(tasks)))
    rows = np.stack([starts[window], windows[window], line, 0 * line], axis=1)
    return rows.astype(np.int32), np.array(tasks, np.int32), np.array(merges, np.int32).reshape(-1, 4)


def _padding(rows: int, heads: AttentionHeads) -> _Lists:
    """Return the lists of rows that see nothing."""
    tasks = [(first, end - first, 0, 0, 0, 0, 0, 0) for first, end in _tiles_of_rows(rows, heads)]
    return np.zeros((rows, 4), np.int32), np.array(tasks, np.int32).reshape(-1, 8), np.zeros((0, 4), np.int32)


def _tiles_of_rows(rows: int, heads: AttentionHeads) -> list[tuple[int, int]]:
    """Return first and end rows of tiles with at most PAIRS pairs of a row and a query head."""
    step = PAIRS // (heads.heads // heads.kv_heads)
    return [(first, min(first + step, rows)) for first in range(0, rows, step)]


def _most_parts(prefix: int, programs: int) -> int:
    """Return into how many parts a prefix is split at most, to make about _PROGRAMS programs out of `programs`."""
    columns = max(_PART_COLUMNS, _COLUMNS_PER_PROGRAM * programs)
    return max(1, min(-(-_PROGRAMS // max(programs, 1)), prefix // columns))
