"""Windows of several requests as the batch of one forward, and its answer cut back into theirs.

What pads a smaller request is inert: a padding row sees itself alone, no real row sees it, and its statistics are cut
off. Pure; knows arrays only, no session and no decoding rule.
"""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract import Statistics, WindowBatch
from lopa.runtime.sequence.row_statistics import RowStatistics
from lopa.runtime.sequence.windows import Windows

MOST_PADDING = 0.25
"""Padding that a forward may have, as a share of its real rows (measured: docs/engine.md)."""


def groups_from_windows(windows: Sequence[Windows], most_padding: float) -> tuple[tuple[int, ...], ...]:
    """Which requests share a forward: every index of `windows` once.

    The largest come first, each into the first group whose padding stays within the share. Requests of one size
    always share a forward; `most_padding` infinite gives one group, 0 a group for each size.
    """
    by_size = sorted(
        range(len(windows)), key=lambda i: -windows[i].forward_rows.input_ids.size
    )  # stable: equal ones in order
    groups: list[list[int]] = []
    for index in by_size:
        home = next((group for group in groups if _fits(windows, [*group, index], most_padding)), None)
        if home is None:
            groups.append([index])
        else:
            home.append(index)
    return tuple(tuple(sorted(group)) for group in groups)


def _fits(windows: Sequence[Windows], group: Sequence[int], most_padding: float) -> bool:
    shapes = [windows[i].forward_rows.input_ids.shape for i in group]
    rows: int = len(group) * max(branches for branches, _ in shapes) * max(width for _, width in shapes)
    real: int = sum(branches * width for branches, width in shapes)
    return rows <= (1 + most_padding) * real


def batch_from_windows(
    windows: Sequence[Windows], requests: Sequence[int], temperatures: Sequence[float]
) -> WindowBatch:
    """One forward of all `windows`, at least one, each with its request's number and temperature.

    A temperature of 0, which decodes greedily, leaves the logits as they are.
    """
    given = [each.forward_rows for each in windows]
    branches, width, queries = (
        max(sizes)
        for sizes in zip(*((*each.input_ids.shape, each.logits_index.shape[1]) for each in given), strict=True)
    )
    count = len(windows)
    input_ids = np.zeros((count, branches, width), np.int64)
    mask = np.zeros((count, branches, width, width), np.bool_)
    mask[:, :, np.arange(width), np.arange(width)] = True
    logits_index = np.zeros((count, branches, queries), np.int64)
    starts = np.array([each.prefix for each in windows])
    positions = np.empty_like(input_ids)
    positions[:] = starts[:, None, None] + np.arange(width)
    for slot, each in enumerate(given):
        own_branches, own_width = each.input_ids.shape
        input_ids[slot, :own_branches, :own_width] = each.input_ids
        positions[slot, :own_branches, :own_width] = each.positions
        mask[slot, :own_branches, :own_width, :own_width] = each.mask
        logits_index[slot, :own_branches, : each.logits_index.shape[1]] = each.logits_index
    return WindowBatch(
        requests=tuple(requests),
        input_ids=input_ids,
        position_ids=positions,
        window_mask=mask,
        logits_index=logits_index,
        temperature=np.array([temperature or 1.0 for temperature in temperatures], np.float32),
    )


def rows_of_windows(statistics: Statistics, slot: int, windows: Windows) -> RowStatistics:
    """The rows [B, Q] that the request in `slot` of the batch asked for with `windows`."""
    branches, queries = windows.forward_rows.logits_index.shape
    own = (slot, slice(branches), slice(queries))
    logits = None if statistics.logits is None else statistics.logits[own]
    rows = RowStatistics(statistics.topk_ids[own], statistics.topk_logprobs[own], statistics.entropy[own], logits)
    return rows if windows.shared is None else rows[0][windows.shared.answers]
