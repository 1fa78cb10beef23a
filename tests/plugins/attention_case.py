"""Random ragged attention problems, their lists, and their results written row by row."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from tests.plugins.kernel_inputs import Array, normal

PAIRS, CHUNK_ROWS, LAYERS = 64, 64, 2


@dataclass
class Problem:
    """Requests with windows behind their prefixes."""

    query: Array
    """[rows, heads, size]"""
    key: Array
    """[rows, kv_heads, size], or [rows, 1, width]"""
    value: Array
    slab: Array
    """[chunks, 2 LAYERS, kv_heads, CHUNK_ROWS, size], or [.., CHUNK_ROWS, width]. What no request has is NaN."""
    origin: int
    """Element of the slab from which chunks are counted."""
    layer: int
    work: Array
    tasks: Array
    merges: Array
    wanted: Array
    """float64 [rows, heads, size]"""
    touched: Array
    """bool [rows]: rows that tasks write."""
    scale: float
    sizes: list[int]
    """Heads, kv_heads and size."""
    is_sliding: bool

    def results(self) -> tuple[Array, Array]:
        """Return an output and a scratch array, full of NaN."""
        parts, (_, kv_heads, size) = int((self.tasks[:, 1] < 0).sum()), self.sizes
        scratch = np.full((max(parts, 1), kv_heads, PAIRS * (size + 2)), np.nan, np.float32)
        return np.full_like(self.query, np.nan), scratch


def random_problem(
    seed: int,
    *,
    group: int,
    kv_heads: int,
    size: int,
    floats: str,
    requests: list[tuple[int, list[int]]],
    columns: int,
    padding: int = 0,
    seen: float = 0.5,
    scale: float | None = None,
    whole: bool = False,
    unused: int = 0,
    sliding: bool = False,
) -> Problem:
    """Return requests, each with rows of its prefix and lengths of its windows, and `padding` rows that see nothing.

    One more row belongs to no task. `whole` makes one task of every 64 pairs, without parts. Otherwise tasks are split
    at random, and in random order. Lists, chunks and masks lie anywhere. All heads of a row of the cache lie side by
    side if `unused` numbers follow them. `sliding` rows see no cached rows before a start.
    """
    rng = np.random.default_rng(seed)
    heads, factor, layer = group * kv_heads, scale or size**-0.5, int(rng.integers(LAYERS))
    lengths = [length for _, windows in requests for length in windows]
    starts = np.cumsum([0, *lengths])
    real = int(starts[-1])
    total = real + padding + 1
    counts = [-(-prefix // CHUNK_ROWS) for prefix, _ in requests]
    order = rng.permutation(sum(counts) + 1)
    slab = normal(rng, (len(order), 2 * LAYERS, kv_heads, CHUNK_ROWS, size), floats)
    query = normal(rng, (total, heads, size), floats)
    key, value = (normal(rng, (total, kv_heads, size), floats) for _ in range(2))

    rows = np.zeros((total, 4), np.int32)
    masks, offset = [], 0
    for window in rng.permutation(len(lengths)):
        length, start = lengths[window], int(starts[window])
        mask = rng.random((length, length)) < seen
        rows[start : start + length] = [(start, length, offset + n * length, 0) for n in range(length)]
        masks.append(mask.reshape(-1))
        offset += length * length
    window_mask = np.concatenate(masks)

    tiles, first_window, first_chunk = [], 0, 0
    wanted, touched = np.zeros((total, heads, size)), np.arange(total) < total - 1
    for (prefix, windows), count in zip(requests, counts, strict=True):
        spans = [(int(starts[first_window + n]), length) for n, length in enumerate(windows)]
        own_chunks = order[first_chunk : first_chunk + count]
        if count:
            slab[own_chunks[-1], :, :, (prefix - 1) % CHUNK_ROWS + 1 :] = np.nan
        past = slab[own_chunks, 2 * layer : 2 * layer + 2].astype(np.float64).transpose(1, 2, 0, 3, 4)
        keys, values = past.reshape(2, kv_heads, -1, size)[:, :, :prefix]
        for start, length in spans:
            if sliding:
                rows[start : start + length, 3] = rng.integers(-9, prefix + 40, length)
            for row, h in np.ndindex(length, heads):
                line, begin = rows[start + row, 2], max(0, rows[start + row, 3])
                mine = start + np.flatnonzero(window_mask[line : line + length])
                seen_keys = np.concatenate([keys[h // group][begin:], key[mine, h // group].astype(np.float64)])
                seen_values = np.concatenate([values[h // group][begin:], value[mine, h // group].astype(np.float64)])
                weights = np.exp(seen_keys @ query[start + row, h].astype(np.float64) * factor)
                wanted[start + row, h] = weights @ seen_values / (weights.sum() or 1.0)
        for first, rows_of_task in _runs(rng, spans[0][0], sum(windows), PAIRS // group, whole=whole):
            inside = [(s, length) for s, length in spans if s < first + rows_of_task and s + length > first]
            own_range = (inside[0][0], inside[-1][0] + inside[-1][1])
            cuts = [] if whole else [int(c) for c in np.flatnonzero(rng.random(-(-prefix // columns)) < 0.4) if c]
            pasts = list(pairwise([0, *(columns * c for c in cuts), prefix]))
            if not whole and rng.random() < 0.3:
                pasts.append((0, 0))
            owns = [(0, 0)] * len(pasts)
            cut = own_range[1] if len(pasts) == 1 else int(rng.integers(own_range[0], own_range[1] + 1))
            for part, own in zip(
                rng.permutation(len(pasts)), pairwise((own_range[0], cut, own_range[1])), strict=False
            ):
                owns[part] = own
            sign = -1 if len(pasts) > 1 else 1
            tiles.append(
                [
                    [first, sign * rows_of_task, *past, *own, first_chunk, 0]
                    for past, own in zip(pasts, owns, strict=True)
                ]
            )
        first_window, first_chunk = first_window + len(windows), first_chunk + count
    tiles += [[[*run, 0, 0, 0, 0, 0, 0]] for run in _runs(rng, real, padding, PAIRS // group, whole=whole)]
    tasks, merges, parts = [], [], 0
    for n in rng.permutation(len(tiles)):
        if len(tiles[n]) > 1:
            merges.append((tiles[n][0][0], -tiles[n][0][1], parts, len(tiles[n])))
            for task in tiles[n]:
                task[7], parts = parts, parts + 1
        tasks += tiles[n]
    if unused:
        slab = _wide(slab.swapaxes(2, 3), unused)
    origin = 64 * int(rng.integers(slab.size // 64))
    chunks = order[: sum(counts)].astype(np.int64) * slab[0].size - origin
    of_tasks, of_merges = np.array(tasks, np.int32), np.array(merges, np.int32).reshape(-1, 4)
    work = _work(rng, rows, of_tasks, of_merges, chunks, window_mask)
    if sliding:
        work = np.concatenate([np.full(24, 24, np.int32), work])
    sizes, given = [heads, kv_heads, size], (layer, work, of_tasks, of_merges, wanted, touched, factor)
    return Problem(query, *(_wide(each, unused) for each in (key, value)), slab, origin, *given, sizes, sliding)


def _wide(rows: Array, unused: int) -> Array:
    """Return rows [.., heads, size] as [.., 1, width], with NaN behind the heads."""
    if not unused:
        return rows
    flat = rows.reshape(*rows.shape[:-2], 1, -1)
    return np.concatenate([flat, np.full((*flat.shape[:-1], unused), np.nan, rows.dtype)], -1)


def _work(rng: np.random.Generator, *lists: Array) -> Array:
    """Return lists of rows, tasks, merges, chunks and mask as one array, in any order with gaps."""
    words = rng.integers(-(2**31), 2**31, 8, np.int32)
    words[:2] = len(lists[1]), len(lists[2])
    for n in rng.permutation(len(lists)):
        words = np.concatenate([words, rng.integers(-(2**31), 2**31, 2 * rng.integers(1, 5), np.int32)])
        words[2 + n] = len(words)
        content = lists[n].tobytes()
        words = np.concatenate([words, np.frombuffer(content + bytes(-len(content) % 8), np.int32)])
    return np.concatenate([words, np.zeros(2, np.int32)])


def _runs(rng: np.random.Generator, start: int, length: int, most: int, *, whole: bool) -> list[tuple[int, int]]:
    """Split rows into runs of at most `most` rows: first row and number of rows."""
    found, done = [], 0
    while done < length:
        size = min(most, length - done)
        size = size if whole else int(rng.integers(1, size + 1))
        found.append((start + done, size))
        done += size
    return found


def arguments(problem: Problem, cache: Any, output: Array, scratch: Array) -> list[Any]:
    """Return the arguments of branch_attention_kernel."""
    arrays = [problem.query, problem.key, problem.value, cache, problem.work, output, scratch]
    width, size = problem.key[0].size, problem.sizes[2]
    is_wide = problem.key.shape[1:] != tuple(problem.sizes[1:])
    strides = [width, width, size] if is_wide else [width, size, CHUNK_ROWS * size]
    return [*arrays, *problem.sizes, *strides, problem.layer, problem.scale]
