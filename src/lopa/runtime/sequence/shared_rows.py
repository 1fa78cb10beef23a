"""The windows of a request's branches as one window, in which rows that are equal on several branches stand once.

A row depends on the prefix, which all branches share, on its token and its position, and on the rows that it sees,
through all layers. So it need not be computed again where all of these are what they are on the anchor: with a
block-causal window, the rows of the blocks in front of the one in which a lookahead was written. Which row sees which
is said by the window mask alone, so a graph of the contract needs to know nothing of it. Every row sees what it saw
before; a sum over them in another order may round its last bits otherwise. Pure; knows arrays only.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.sequence.windows import SharedRows, Windows

Pays = Callable[[Windows, int, int], bool]
"""Whether to compute windows as one of so many rows, of which so many are wanted."""


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
