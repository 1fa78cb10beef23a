"""Random ragged attention problems, their task lists, and their results written row by row."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from tests.plugins.kernel_inputs import Array, normal

PAIRS = 64


@dataclass
class Problem:
    """Requests with windows behind their prefixes. All arrays are in the layout of branch_attention_kernel."""

    query: Array
    """[rows, heads, size]"""
    key: Array
    """[rows / width, kv_heads, width, size]"""
    value: Array
    past_key: Array
    """[chunks, kv_heads, chunk_rows, size]"""
    past_value: Array
    window_mask: Array
    prefix_mask: Array
    rows: Array
    tasks: Array
    merges: Array
    chunks: Array
    wanted: Array
    """float64 [rows, heads, size]"""
    touched: Array
    """bool [rows]: rows that tasks write."""
    numbers: dict[str, Any] = field(default_factory=dict)

    def arguments(self, output: Array, scratch: Array) -> list[Any]:
        """Return the arguments of branch_attention_kernel."""
        n = self.numbers
        arrays = [self.query, self.key, self.value, self.past_key, self.past_value, self.window_mask, self.prefix_mask]
        lists = [self.rows, self.tasks, self.chunks, len(self.tasks)]
        sizes = [n[name] for name in ("heads", "kv_heads", "size", "width", "chunk_rows", "stride", "scale")]
        return [*arrays, *lists, output, scratch, *sizes]

    def results(self) -> tuple[Array, Array]:
        """Return an output and a scratch array, full of NaN."""
        tasks, kv_heads, size = len(self.tasks), self.numbers["kv_heads"], self.numbers["size"]
        return np.full_like(self.query, np.nan), np.full((tasks, kv_heads, PAIRS * (size + 2)), np.nan, np.float32)


def random_problem(
    seed: int,
    *,
    group: int,
    kv_heads: int,
    size: int,
    floats: str,
    requests: list[tuple[int, list[int]]],
    columns: int,
    chunk_rows: int | None,
    padded: int = 0,
    seen: float = 0.5,
    scale: float | None = None,
    whole: bool = False,
) -> Problem:
    """Return requests, each with rows of its prefix and lengths of its windows, at most `padded` unless it is 0.

    With `padded`, all windows take that many rows, else rows are packed. `chunk_rows` None is one chunk a request, as
    long as the longest prefix. `whole` makes one task of every 64 pairs, without parts. Otherwise tasks are split at
    random, and in random order.
    """
    rng = np.random.default_rng(seed)
    heads = group * kv_heads
    lengths = [length for _, windows in requests for length in windows]
    places = [padded or length for length in lengths]
    starts = np.concatenate([[0], np.cumsum(places)])
    total = int(starts[-1])
    width = padded or total
    longest = max(prefix for prefix, _ in requests)
    capacity = chunk_rows or max(longest, 1)
    counts = [-(-prefix // capacity) for prefix, _ in requests]
    order = rng.permutation(sum(counts) + 1)
    shape = (len(order), kv_heads, capacity, size)
    past_key, past_value = normal(rng, shape, floats), normal(rng, shape, floats)
    query = normal(rng, (total, heads, size), floats)
    key, value = (normal(rng, (total // width, kv_heads, width, size), floats) for _ in range(2))
    factor = scale or size**-0.5

    rows = np.zeros((total, 3), np.int32)
    masks, offset = [], 0
    for window in rng.permutation(len(lengths)):
        length, start = lengths[window], int(starts[window])
        mask = rng.random((length, length)) < seen
        rows[start : start + length] = [(start, length, offset + n * length) for n in range(length)]
        masks.append(mask.reshape(-1))
        offset += length * length
    window_mask = np.concatenate([*masks, np.ones(1, np.bool_)])
    prefix_mask = np.concatenate([rng.random(prefix) < seen for prefix, _ in requests] + [np.ones(7, np.bool_)])

    tiles, first_window, first_chunk, mask = [], 0, 0, 0
    wanted, touched = np.zeros((total, heads, size)), np.zeros(total, np.bool_)
    for (prefix, windows), count in zip(requests, counts, strict=True):
        spans = [(int(starts[first_window + n]), length) for n, length in enumerate(windows)]
        keys, values = (
            np.concatenate(list(past[order[first_chunk : first_chunk + count]]), axis=1)[:, :prefix].astype(np.float64)
            if count
            else np.zeros((kv_heads, 0, size))
            for past in (past_key, past_value)
        )
        visible = prefix_mask[mask : mask + prefix]
        for start, length in spans:
            own = slice(start, start + length)
            touched[own] = True
            flat = [
                x.transpose(0, 2, 1, 3).reshape(total, kv_heads, size)[own].astype(np.float64) for x in (key, value)
            ]
            for row in range(start, start + length):
                line = rows[row, 2]
                mine = window_mask[line : line + length]
                for head in range(heads):
                    h = head // group
                    seen_keys = np.concatenate([keys[h][visible], flat[0][mine, h]])
                    seen_values = np.concatenate([values[h][visible], flat[1][mine, h]])
                    weights = np.exp(seen_keys @ query[row, head].astype(np.float64) * factor)
                    wanted[row, head] = weights @ seen_values / (weights.sum() or 1.0)
        for first, rows_of_task in _runs(rng, spans, PAIRS // group, joined=not padded, whole=whole):
            inside = [(s, length) for s, length in spans if s < first + rows_of_task and s + length > first]
            own_range = (inside[0][0], inside[-1][0] + inside[-1][1])
            cuts = [] if whole else [int(c) for c in np.flatnonzero(rng.random(-(-prefix // columns)) < 0.4) if c]
            edges = [0, *(columns * c for c in cuts), prefix]
            pasts = list(pairwise(edges))
            if not whole and rng.random() < 0.3:
                pasts.append((0, 0))
            owns = [(0, 0)] * len(pasts)
            cut = own_range[1] if len(pasts) == 1 else int(rng.integers(own_range[0], own_range[1] + 1))
            for part, own in zip(
                rng.permutation(len(pasts)), pairwise((own_range[0], cut, own_range[1])), strict=False
            ):
                owns[part] = own
            sign = -1 if len(pasts) > 1 else 1
            parts = [
                (first, sign * rows_of_task, *past, *own, first_chunk, mask)
                for past, own in zip(pasts, owns, strict=True)
            ]
            tiles.append(parts)
        first_window, first_chunk, mask = first_window + len(windows), first_chunk + count, mask + prefix
    tasks, merges = [], []
    for n in rng.permutation(len(tiles)):
        parts = tiles[n]
        if len(parts) > 1:
            merges.append((parts[0][0], -parts[0][1], len(tasks), len(parts)))
        tasks += parts
    numbers = {"heads": heads, "kv_heads": kv_heads, "size": size, "width": width, "chunk_rows": capacity}
    numbers |= {"stride": capacity * size, "scale": factor}
    chunks = order[: sum(counts)].astype(np.int64) * (kv_heads * capacity * size)
    return Problem(
        *(query, key, value, past_key, past_value, window_mask, prefix_mask, rows),
        np.array(tasks, np.int32),
        np.array(merges, np.int32).reshape(-1, 4),
        chunks if len(chunks) else np.zeros(1, np.int64),
        wanted,
        touched,
        numbers,
    )


def _runs(
    rng: np.random.Generator, spans: list[tuple[int, int]], most: int, *, joined: bool, whole: bool
) -> list[tuple[int, int]]:
    """Split the rows of neighbouring windows into runs of at most `most` rows: first row and number of rows.

    Runs may cross windows that are `joined`, since there are no rows between them.
    """
    ranges = [(spans[0][0], sum(length for _, length in spans))] if joined else spans
    found = []
    for start, length in ranges:
        done = 0
        while done < length:
            size = min(most, length - done)
            size = size if whole else int(rng.integers(1, size + 1))
            found.append((start + done, size))
            done += size
    return found
