"""Combine the rows of several requests into one forward, and split its statistics by request."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from lopa.runtime.contract import Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.state.packed_rows import PackedRows

MAX_PADDING = 0.25
"""Maximum padding of a forward, as a share of its real rows (measured: docs/measurements/serving.md)."""


def groups_from_rows(requests: Sequence[PackedRows], max_padding: float) -> tuple[tuple[int, ...], ...]:
    """Return groups of requests that share a forward; each index of `requests` occurs once.

    Requests are assigned from the largest to the smallest. Each joins the first group whose padding stays within the
    limit. Requests of equal size always share a forward. An infinite `max_padding` gives one group, 0 one group per
    size.
    """
    if len(requests) == 1:
        return ((0,),)
    shapes = [(len(each.lengths), max(each.lengths)) for each in requests]
    by_size = sorted(range(len(shapes)), key=lambda i: -shapes[i][0] * shapes[i][1])  # stable: equal sizes keep order
    groups: list[list[int]] = []
    for index in by_size:
        target = next(
            (group for group in groups if _fits_padding([shapes[i] for i in (*group, index)], max_padding)), None
        )
        if target is None:
            groups.append([index])
        else:
            target.append(index)
    return tuple(tuple(sorted(group)) for group in groups)


def _fits_padding(shapes: Sequence[tuple[int, int]], max_padding: float) -> bool:
    """Return True if the padding of requests of these `shapes`, windows and longest window, stays within the limit."""
    rows = len(shapes) * max(windows for windows, _ in shapes) * max(length for _, length in shapes)
    return rows <= (1 + max_padding) * sum(windows * length for windows, length in shapes)


def batch_from_rows(rows: Sequence[PackedRows], requests: Sequence[int], temperatures: Sequence[float]) -> PackedBatch:
    """Return one forward for all `rows`, at least one, with the number and temperature of each request.

    A temperature of 0 decodes greedily and leaves the logits unchanged.
    """
    starts = accumulate((each.input_ids.size for each in rows), initial=0)
    return PackedBatch(
        requests=tuple(requests),
        temperature=np.array([temperature or 1.0 for temperature in temperatures], np.float32),
        slots=np.repeat(np.arange(len(rows)), [len(each.lengths) for each in rows]),
        lengths=np.array([length for each in rows for length in each.lengths]),
        input_ids=np.concatenate([each.input_ids for each in rows]),
        position_ids=np.concatenate([each.positions for each in rows]),
        mask=rows[0].mask if len(rows) == 1 else np.concatenate([each.mask for each in rows]),
        sampled_rows=np.concatenate([each.sampled_rows + start for each, start in zip(rows, starts, strict=False)]),
    )


def columns_from_statistics(statistics: Statistics, rows: Sequence[PackedRows]) -> list[RowStatistics]:
    """Return the columns [C] of each request from the `statistics` [M, ...] of a forward of their `rows`."""
    found, begin = [], 0
    for packed in rows:
        own = slice(begin, begin := begin + len(packed.sampled_rows))
        results = RowStatistics(
            statistics.topk_ids[own],
            statistics.topk_logprobs[own],
            statistics.entropy[own],
            None if statistics.logits is None else statistics.logits[own],
        )
        is_in_order = np.array_equal(packed.column_rows, packed.sampled_rows)
        found.append(results if is_in_order else results.take(packed.answers))  # logits are large
    return found
