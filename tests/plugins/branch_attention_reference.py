"""Branch attention on a list of tasks, and the merge of its parts, in numpy with float64. They are slow.

They are the references of branch_attention_kernel and attention_merge_kernel, with the arguments of these kernels.
Scratch memory of a task and a head has 64 sums [64, D], then 64 maxima in units of log(2), then 64 totals.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
PAIRS = 64


def branch_attention_reference(
    query: Array,
    key: Array,
    value: Array,
    past_key: Array,
    past_value: Array,
    window_mask: Array,
    prefix_mask: Array,
    rows: Array,
    tasks: Array,
    chunks: Array,
    count: int,
    output: Array,
    scratch: Array,
    heads: int,
    kv_heads: int,
    size: int,
    width: int,
    chunk_rows: int,
    past_head_stride: int,
    scale: float,
) -> None:
    """Compute the first `count` tasks. All arrays are flat, and `output` and `scratch` are written.

    A row that sees nothing is zero.
    """
    group = heads // kv_heads
    for task in range(count):
        first, signed, past_begin, past_end, own_begin, own_end, first_chunk, mask = map(int, tasks[8 * task :][:8])
        past = [c for c in range(past_begin, past_end) if prefix_mask[mask + c]]
        for head in range(kv_heads):
            places = [
                int(chunks[first_chunk + c // chunk_rows]) + head * past_head_stride + c % chunk_rows * size
                for c in past
            ]
            for row in range(first, first + abs(signed)):
                window, length, line = map(int, rows[3 * row :][:3])
                own = [
                    m
                    for m in range(max(own_begin, window), min(own_end, window + length))
                    if window_mask[line + m - window]
                ]
                own_places = [((m // width * kv_heads + head) * width + m % width) * size for m in own]
                keys = _vectors(past_key, places, size, key, own_places)
                values = _vectors(past_value, places, size, value, own_places)
                for member in range(group):
                    place = (row * heads + head * group + member) * size
                    scores = keys @ query[place : place + size].astype(np.float64) * scale
                    greatest = scores.max(initial=-np.inf)
                    weights = np.exp(scores - greatest) if len(scores) else scores
                    total, mixed = weights.sum(), weights @ values
                    if signed < 0:
                        part = scratch[(task * kv_heads + head) * PAIRS * (size + 2) :][: PAIRS * (size + 2)]
                        pair = (row - first) * group + member
                        part[pair * size : (pair + 1) * size] = mixed
                        part[PAIRS * size + pair] = greatest / np.log(2)
                        part[PAIRS * (size + 1) + pair] = total
                    else:
                        output[place : place + size] = mixed / (total or 1.0)


def _vectors(past: Array, places: list[int], size: int, own: Array, own_places: list[int]) -> Array:
    """Return the rows of `size` elements at these places, float64 [rows, size]."""
    found = [past[place : place + size] for place in places] + [own[place : place + size] for place in own_places]
    return np.array(found, np.float64).reshape(-1, size)


def attention_merge_reference(
    scratch: Array, merges: Array, output: Array, heads: int, kv_heads: int, size: int
) -> None:
    """Merge the parts of each entry of `merges` by log-sum-exp. All arrays are flat, and `output` is written."""
    group = heads // kv_heads
    parts_of_heads = scratch.reshape(-1, kv_heads, PAIRS * (size + 2)).astype(np.float64)
    for first, rows, task, parts in merges.reshape(-1, 4):
        found = parts_of_heads[task : task + parts]
        sums = found[:, :, : PAIRS * size].reshape(parts, kv_heads, PAIRS, size)
        maxima, totals = found[:, :, PAIRS * size :].reshape(parts, kv_heads, 2, PAIRS).transpose(2, 0, 1, 3)
        for pair, head in np.ndindex(rows * group, kv_heads):
            seen = totals[:, head, pair] > 0
            peaks = maxima[seen, head, pair]
            weights = np.exp2(peaks - peaks.max(initial=-np.inf))
            total = weights @ totals[seen, head, pair]
            place = ((first + pair // group) * heads + head * group + pair % group) * size
            output[place : place + size] = weights @ sums[seen, head, pair] / (total or 1.0)
