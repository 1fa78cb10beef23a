"""Combine the windows of several requests into one batch, and split its statistics by request.

Padding has no effect: a padding row attends only to itself, no real row attends to it, and its statistics are dropped.

Equal rows on several branches of a request may be computed once. A row depends on the shared prefix, on its token and
position, and on the rows that it attends to, through all layers. Rows for which all of these match the anchor need no
second computation. With a block-causal window these are the rows of the blocks before the one with a lookahead token.
The window mask alone expresses which row attends to which row, so graphs need no support for it. Every row attends to
the same rows as before, but the order of the sums changes, which may change the last bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64, Statistics, WindowBatch
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.state.windows import SharedRows, Windows

SharingTest = Callable[[Windows, int, int], bool]
"""Function that returns True if one shared window is faster. Its arguments are the windows, and the numbers of rows and
sampled rows of the shared one.
"""
MAX_PADDING = 0.25
"""Maximum padding of a forward, as a share of its real rows (measured: docs/measurements/serving.md)."""


def groups_from_windows(windows: Sequence[Windows], max_padding: float) -> tuple[tuple[int, ...], ...]:
    """Return groups of requests that share a forward; each index of `windows` occurs once.

    Requests are assigned from the largest to the smallest. Each joins the first group whose padding stays within the
    limit. Requests of equal size always share a forward. An infinite `max_padding` gives one group, 0 one group per
    size.
    """
    if len(windows) == 1:
        return ((0,),)
    by_size = sorted(
        range(len(windows)), key=lambda i: -windows[i].forward_rows.input_ids.size
    )  # stable, so equal sizes keep their order
    groups: list[list[int]] = []
    for index in by_size:
        target = next((group for group in groups if _fits_padding(windows, [*group, index], max_padding)), None)
        if target is None:
            groups.append([index])
        else:
            target.append(index)
    return tuple(tuple(sorted(group)) for group in groups)


def _fits_padding(windows: Sequence[Windows], group: Sequence[int], max_padding: float) -> bool:
    shapes = [windows[i].forward_rows.input_ids.shape for i in group]
    rows: int = len(group) * max(branches for branches, _ in shapes) * max(width for _, width in shapes)
    real: int = sum(branches * width for branches, width in shapes)
    return rows <= (1 + max_padding) * real


def batch_from_windows(
    windows: Sequence[Windows], requests: Sequence[int], temperatures: Sequence[float]
) -> WindowBatch:
    """Return one forward for all `windows`, at least one, with the number and temperature of each request.

    A temperature of 0 decodes greedily and leaves the logits unchanged.
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
    """Return the statistics [B, Q] that `windows`, in `slot` of the batch, requested."""
    branches, queries = windows.forward_rows.logits_index.shape
    own = (slot, slice(branches), slice(queries))
    logits = None if statistics.logits is None else statistics.logits[own]
    rows = RowStatistics(statistics.topk_ids[own], statistics.topk_logprobs[own], statistics.entropy[own], logits)
    return rows if windows.shared is None else rows[0][windows.shared.answers]


def with_shared_rows(windows: Windows, is_faster: SharingTest) -> Windows:
    """Return `windows` with their rows as one window, `shared`, if that has fewer rows and `is_faster` returns True.

    Windows stay separate if the rows to commit differ between branches, because the winner is not known yet.
    """
    branches, width = windows.input_ids.shape
    if branches == 1:
        return windows
    alike = rows_of_anchor(windows)
    if not alike[:, : windows.commit].all():
        return windows
    own = (np.arange(width) < np.array(windows.lengths)[:, None]) & ~alike
    first = windows.lengths[-1]
    total = first + int(np.count_nonzero(own))
    places = np.broadcast_to(np.arange(width), (branches, width)).copy()
    """[B, W]: index of each real row in the shared window."""
    places[own] = np.arange(first, total)
    logits_index, answers = _sampled_rows(windows, places)
    if total >= branches * width or not is_faster(windows, total, logits_index.size):
        return windows

    own[-1, :first] = True  # the anchor's rows come first
    input_ids = np.empty((1, total), np.int64)
    positions = np.empty((1, total), np.int64)
    mask = np.zeros((1, total, total), np.bool_)
    for branch, length in enumerate(windows.lengths):
        rows = own[branch]
        at = places[branch, rows]
        input_ids[0, at] = windows.input_ids[branch, rows]
        positions[0, at] = windows.positions[branch, rows]
        mask[0, at[:, None], places[branch, :length]] = windows.mask[branch, rows, :length]
    return replace(windows, shared=SharedRows(input_ids, positions, mask, logits_index, answers))


def rows_of_anchor(windows: Windows) -> Bool:
    """Return which rows equal the anchor's (the last branch's) in everything that they depend on, [B, W]. Padding is
    False."""
    width = windows.input_ids.shape[1]
    lengths = np.minimum(windows.lengths, windows.lengths[-1])
    alike: Bool = (
        (np.arange(width) < lengths[:, None])
        & (windows.input_ids == windows.input_ids[-1])
        & (windows.positions == windows.positions[-1])
        & (windows.mask == windows.mask[-1]).all(axis=-1)
    )
    while True:
        sees_another = alike & (windows.mask & ~alike[:, None, :]).any(axis=-1)
        if not sees_another.any():
            return alike
        alike &= ~sees_another


def _sampled_rows(windows: Windows, places: Int64) -> tuple[Int64, Int64]:
    """Return `logits_index` and `answers` of SharedRows for rows at `places` [B, W]."""
    needed = (np.arange(windows.logits_positions.shape[1]) < windows.counts[:, None]) & ~windows.from_kept_row
    answers = np.zeros(windows.logits_positions.shape, np.int64)
    rows = np.take_along_axis(places, windows.logits_index, axis=1)[needed]
    found, answers[needed] = np.unique(rows, return_inverse=True)
    # a forward needs at least one sampled row
    return (found if len(found) else np.zeros(1, np.int64))[None], answers
