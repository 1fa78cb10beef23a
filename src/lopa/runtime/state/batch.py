"""From the windows of requests to the batch of one forward, and its answer cut back into theirs.

What pads a smaller request is inert: a padding row sees itself alone, no real row sees it, and its statistics are cut
off.

Rows that are equal on several branches of a request may stand once. A row depends on the prefix, which all branches
share, on its token and its position, and on the rows that it sees, through all layers. So it need not be computed again
where all of these are what they are on the anchor: with a block-causal window, the rows of the blocks in front of the
one in which a lookahead was written. Which row sees which is said by the window mask alone, so a graph of the contract
needs to know nothing of it. Every row sees what it saw before; a sum over them in another order may round its last bits
otherwise.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64, Statistics, WindowBatch
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.state.windows import SharedRows, Windows

Pays = Callable[[Windows, int, int], bool]
"""Whether to compute windows as one of so many rows, of which so many are wanted."""
MAX_PADDING = 0.25
"""Padding that a forward may have, as a share of its real rows (measured: docs/measurements/serving.md)."""


def groups_from_windows(windows: Sequence[Windows], max_padding: float) -> tuple[tuple[int, ...], ...]:
    """Which requests share a forward: every index of `windows` once.

    The largest come first, each into the first group whose padding stays within the share. Requests of one size
    always share a forward; `max_padding` infinite gives one group, 0 a group for each size.
    """
    if len(windows) == 1:
        return ((0,),)
    by_size = sorted(
        range(len(windows)), key=lambda i: -windows[i].forward_rows.input_ids.size
    )  # stable: equal ones in order
    groups: list[list[int]] = []
    for index in by_size:
        home = next((group for group in groups if _fits(windows, [*group, index], max_padding)), None)
        if home is None:
            groups.append([index])
        else:
            home.append(index)
    return tuple(tuple(sorted(group)) for group in groups)


def _fits(windows: Sequence[Windows], group: Sequence[int], max_padding: float) -> bool:
    shapes = [windows[i].forward_rows.input_ids.shape for i in group]
    rows: int = len(group) * max(branches for branches, _ in shapes) * max(width for _, width in shapes)
    real: int = sum(branches * width for branches, width in shapes)
    return rows <= (1 + max_padding) * real


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


def with_shared_rows(windows: Windows, pays: Pays) -> Windows:
    """`windows` with their rows as one window, `shared`, where that has fewer rows and pays.

    Not where branches differ in rows that are due: which of them are committed is not known before the forward.
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
    """Of every real row of a branch, in the one window."""
    places[own] = np.arange(first, total)
    logits_index, answers = _wanted(windows, places)
    if total >= branches * width or not pays(windows, total, logits_index.size):
        return windows

    own[-1, :first] = True  # as which they stand in front
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
    """[B, W]: rows that are the anchor's, of the last branch, in all that they depend on. Padding is no row."""
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


def _wanted(windows: Windows, places: Int64) -> tuple[Int64, Int64]:
    """`logits_index` and `answers` of SharedRows, for rows of branches at `places` [B, W]."""
    needed = (np.arange(windows.wanted.shape[1]) < windows.counts[:, None]) & ~windows.lacking
    answers = np.zeros(windows.wanted.shape, np.int64)
    rows = np.take_along_axis(places, windows.logits_index, axis=1)[needed]
    found, answers[needed] = np.unique(rows, return_inverse=True)
    # A forward is never asked for zero rows.
    return (found if len(found) else np.zeros(1, np.int64))[None], answers
