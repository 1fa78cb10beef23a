"""Compute equal rows of several branches once: drop them, and put the other rows into one window.

A row depends on the shared prefix, on its token and position, and on the rows that it attends to, through all layers.
Rows for which all of these match the anchor need no second computation. With a block-causal window these are the rows
of the blocks before the one with a lookahead token. The mask alone expresses which row attends to which row, so graphs
need no support for it. Every row attends to the same rows as before, but the order of the sums changes, which may
change the last bits.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool
from lopa.runtime.state.packed_rows import KEPT_ROW, PackedRows

SharingTest = Callable[[PackedRows, int, int], bool]
"""Function that returns True if one shared window is faster. Its arguments are the rows in separate windows, and the
numbers of rows and sampled rows of the shared one.
"""


def with_shared_rows(packed: PackedRows, is_faster: SharingTest) -> PackedRows:
    """Return `packed` with all rows in one window, each once, if that is smaller and `is_faster` returns True.

    The anchor's rows come first, then the rows in which other branches differ. Windows stay separate if the rows to
    commit differ between branches, because the winner is not known yet.
    """
    windows, width, first = len(packed.lengths), max(packed.lengths), packed.lengths[-1]
    if windows == 1:
        return packed
    places = np.concatenate([np.arange(length) for length in packed.lengths])
    """Index of each row [N] in its window, then in the shared one."""
    own = np.flatnonzero(~rows_of_anchor(packed))
    total = first + len(own)
    if (places[own] < packed.commit).any() or total >= windows * width:
        return packed
    places[own] = np.arange(first, total)
    column_rows = np.where(packed.from_kept_row, KEPT_ROW, places[packed.column_rows])
    if not is_faster(packed, total, max(1, len(np.unique(column_rows[column_rows != KEPT_ROW])))):
        return packed

    rows = np.concatenate([np.arange(len(places) - first, len(places)), own])
    mask = np.zeros((total, total), np.bool_)
    begin = 0
    for length, seen in zip(packed.lengths, packed.masks, strict=True):
        inside = rows[(rows >= begin) & (rows < begin + length)]
        mask[places[inside][:, None], places[begin : begin + length]] = seen[inside - begin]
        begin += length
    return replace(
        packed,
        lengths=(total,),
        input_ids=packed.input_ids[rows],
        positions=packed.positions[rows],
        mask=mask.ravel(),
        column_rows=column_rows,
    )


def rows_of_anchor(packed: PackedRows) -> Bool:
    """Return which rows [N] equal the anchor's row at the same place in everything that they depend on.

    The anchor is the last window.
    """
    ends = np.cumsum(packed.lengths)[:-1]
    windows = zip(np.split(packed.input_ids, ends), np.split(packed.positions, ends), packed.masks, strict=True)
    *others, (anchor_ids, anchor_positions, anchor_mask) = windows
    found = []
    for ids, positions, mask in others:
        count = min(len(ids), len(anchor_ids))
        alike = np.zeros(len(ids), np.bool_)
        alike[:count] = (
            (ids[:count] == anchor_ids[:count])
            & (positions[:count] == anchor_positions[:count])
            & (mask[:count, :count] == anchor_mask[:count, :count]).all(axis=-1)
            & ~mask[:count, count:].any(axis=-1)
            & ~anchor_mask[:count, count:].any(axis=-1)
        )
        while (sees_another := alike & (mask & ~alike).any(axis=-1)).any():
            alike &= ~sees_another
        found.append(alike)
    return np.concatenate([*found, np.ones(len(anchor_ids), np.bool_)])
