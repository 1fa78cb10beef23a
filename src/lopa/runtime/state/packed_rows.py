"""The rows of one request's round as one list, without padding, and the columns of statistics that the round reads.

A window is a run of rows that attend to each other and to the request's cached rows. Each branch has its own window,
window after window, until equal rows are shared: then one window holds the rows of all branches. Shadow rows follow the
anchor's rows (lopa.runtime.state.shadow_rows). The rows of several requests join into one forward.

A column is one position whose statistics a branch reads. The row of an earlier round, the kept row, may predict it.

Equal rows of several branches are computed once. A row depends on the shared prefix, on its token and position, and on
the rows that it attends to, through all layers. Rows for which all of these match the anchor need no second
computation. With block-causal attention these are the rows of the blocks before the one with a lookahead token. The
mask alone expresses which row attends to which row, so graphs need no support for it. Every row attends to the same
rows as before, but the order of the sums changes, which may change the last bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from lopa.runtime.contract import Bool, Int64, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.contract.row_statistics import RowStatistics

KEPT_ROW = -1
"""Value in `PackedRows.column_rows` of the row that an earlier round computed last."""
MAX_PADDING = 0.25
"""Maximum padding of a forward, as a share of its real rows (measured: docs/measurements/serving.md)."""


@dataclass(frozen=True, eq=False)
class PackedRows:
    """N rows in S windows, all on the same cached rows, and the C columns of B branches, the anchor last.

    The columns of a branch are its kept column, if any, then its sampled and its editable positions. The anchor's
    remaskable positions follow. When finished rows are committed and a row predicts the next position, the kept column
    belongs to the last committed row. It alone predicts the first position behind it in all rounds until the next
    commit.
    """

    prefix: int
    """Number of cached rows that every row attends to. The session drops later ones before the forward."""
    commit: int
    """Number of leading rows of a window that the winner commits, 0 for none."""
    lengths: tuple[int, ...]
    """Number of rows of each window [S]: one window per branch, or one for all."""
    branch_lengths: tuple[int, ...]
    """Number of rows that each branch [B] attends to or samples, shared ones included."""
    input_ids: Int64
    """Token ids [N]."""
    positions: Int64
    """Positions [N], as the model counts them."""
    mask: Bool
    """The windows' attention masks [L, L] in row-major order, one after another, as in PackedBatch."""
    sampled: tuple[Int64, ...]
    """Sampled positions of each branch, ascending: its masked ones, with exceptions for published quirks and
    layouts."""
    kept_columns: int
    """Number of kept columns of each branch, 0 or 1."""
    column_positions: Int64
    """Positions [C], absolute."""
    column_rows: Int64
    """Row [C] that predicts each column, or KEPT_ROW."""
    editable: tuple[Int64, ...] = ()
    """Unmasked positions of each branch that the round may edit, ascending; empty if the decode does not edit."""
    remaskable: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Unmasked positions of the anchor that shadow rows verify, ascending."""
    cached: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions [prefix] of the cached rows, as the model counts them, in the cache's order."""
    is_final: bool = True
    """True if the rows to commit are final: rows of finished blocks."""

    @property
    def branch_columns(self) -> tuple[int, ...]:
        """Number of columns of each branch [B]."""
        return tuple(stop - first for first, stop in pairwise((*self.first_columns, len(self.column_positions))))

    @cached_property
    def first_columns(self) -> tuple[int, ...]:
        """First column of each branch [B]."""
        counts = [self.kept_columns + len(each) for each in self.sampled]
        for branch, each in enumerate(self.editable):
            counts[branch] += len(each)
        return (0, *accumulate(counts[:-1]))

    @property
    def sampled_per_branch(self) -> tuple[int, ...]:
        """Number of rows of the round that predict columns of each branch [B], each row once."""
        branches = np.split(self.column_rows, self.first_columns[1:])
        return tuple(len({*rows.tolist()} - {KEPT_ROW}) for rows in branches)

    def sampled_columns(self, branch: int) -> slice:
        """Return the columns of the sampled positions of `branch`."""
        first = self.first_columns[branch] + self.kept_columns
        return slice(first, first + len(self.sampled[branch]))

    def editable_columns(self, branch: int) -> slice:
        """Return the columns of the editable positions of `branch`."""
        first = self.sampled_columns(branch).stop
        return slice(first, first + len(self.editable[branch]))

    @property
    def remaskable_columns(self) -> slice:
        """Columns of the remaskable positions."""
        return slice(len(self.column_positions) - len(self.remaskable), len(self.column_positions))

    @property
    def from_kept_row(self) -> Bool:
        """True for columns [C] that the kept row predicts."""
        is_kept: Bool = self.column_rows == KEPT_ROW
        return is_kept

    @cached_property
    def sampled_rows(self) -> Int64:
        """Rows [M] that predict a column, each once, ascending; the first row if there are none."""
        is_sampled = np.zeros(self.input_ids.size + 1, np.bool_)
        is_sampled[self.column_rows] = True  # the kept row, -1, marks the last element, which is no row
        rows = np.flatnonzero(is_sampled[:-1])
        return rows if rows.size else np.zeros(1, np.int64)

    @cached_property
    def answers(self) -> Int64:
        """Index of each column's row [C] in `sampled_rows`; any index for the kept row."""
        return np.searchsorted(self.sampled_rows, self.column_rows)

    def window_of(self, branch: int) -> int:
        """Return the window with the rows of `branch`."""
        return min(branch, len(self.lengths) - 1)

    def rows_to_commit(self, branch: int) -> slice:
        """Return the rows that are committed if `branch` wins."""
        first = sum(self.lengths[: self.window_of(branch)])
        return slice(first, first + self.commit)

    @property
    def masks(self) -> list[Bool]:
        """Attention mask [L, L] of each window [S]."""
        ends = accumulate(length**2 for length in self.lengths)
        return [
            self.mask[end - length**2 : end].reshape(length, length)
            for length, end in zip(self.lengths, ends, strict=True)
        ]


def check_rows(packed: PackedRows, *, prediction_shift: int, unseen: int, kept_for: int | None) -> None:
    """Raise RuntimeError if no row predicts some column of `packed`.

    A position is predicted by a row of the round or by the kept row, which predicts position `kept_for` (None without a
    kept row). `unseen` is `Layout.unseen`. Without this check, a wrong row would cause wrong text without an error.
    """
    needed, is_kept = packed.column_positions, packed.from_kept_row
    found = packed.positions[packed.sampled_rows[packed.answers]] + unseen
    right: Bool = found == np.maximum(needed - prediction_shift, unseen)
    right[is_kept] = needed[is_kept] == kept_for
    if not right.all():
        raise RuntimeError(
            f"no row predicts the positions {np.unique(needed[~right])}, "
            "expected a computed or kept row for every sampled position (this is a bug in lopa, please report it)"
        )


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
