"""The rows of one request's round as one list, without padding, and the columns of statistics that the round reads.

A window is a run of rows that attend to each other and to the request's cached rows. Each branch has its own window,
window after window, until equal rows are shared: then one window holds the rows of all branches
(lopa.runtime.state.shared_rows). Shadow rows follow the anchor's rows (lopa.runtime.state.shadow_rows).

A column is one position whose statistics a branch reads. The row of an earlier round, the kept row, may predict it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.state.branch import BlockState, Branch
from lopa.runtime.state.branch_rows import BranchRows, attention_mask, rows_from_branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.sampled_positions import editable_positions, sampled_positions

KEPT_ROW = -1
"""Value in `PackedRows.column_rows` of the row that an earlier round computed last."""


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

    @property
    def sampled_rows(self) -> Int64:
        """Rows [M] that predict a column, each once, ascending; the first row if there are none."""
        return self._sampled_rows_and_answers[0]

    @property
    def answers(self) -> Int64:
        """Index of each column's row [C] in `sampled_rows`; any index for the kept row."""
        return self._sampled_rows_and_answers[1]

    @cached_property
    def _sampled_rows_and_answers(self) -> tuple[Int64, Int64]:
        is_sampled = np.zeros(self.input_ids.size + 1, np.bool_)
        is_sampled[self.column_rows] = True  # the kept row, -1, marks the last element, which is no row
        rows = np.flatnonzero(is_sampled[:-1])
        return rows if rows.size else np.zeros(1, np.int64), is_sampled[:-1].cumsum()[self.column_rows] - 1

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


def pack_rows(branches: tuple[Branch, ...], context: Context, *, anew: bool = False) -> PackedRows:
    """Return the rows of a round's `branches`. The anchor, the last one, determines which rows are cached.

    With `anew`, temporarily cached rows are computed again, as in a block's first round.
    """
    params, shift, anchor = context.params, context.prediction_shift, branches[-1]
    states = tuple(map(_as_in_first_round, branches)) if anew else branches
    every: list[BranchRows] = []
    for state in states:
        is_like_first = (
            not params.slides and len(state.tokens) == len(states[0].tokens) and state.layout is states[0].layout
        )
        every.append(every[0] if every and is_like_first else rows_from_branch(state, states[-1], params))
    due, unseen = every[-1], anchor.layout.unseen
    order = np.concatenate([each.order for each in every])
    lengths = tuple(len(each.order) for each in every)

    sampled = tuple(sampled_positions(branch, params) for branch in branches)
    if due.is_partial:
        pairs = zip(sampled, every, strict=True)
        sampled = tuple(positions[np.isin(positions - shift, each.order)] for positions, each in pairs)
    editable = tuple(editable_positions(branch) for branch in branches) if params.edits else ()
    kept = due.order[:1] + due.commit if due.commit and due.is_final and shift else due.order[:0]
    groups = (sampled, editable) if editable else (sampled,)
    columns = [np.concatenate([kept, *each]) for each in zip(*groups, strict=True)]
    positions = np.concatenate(columns)
    # No row predicts the first position that has a row. Published quirks that sample this position use its own row.
    predicting = np.maximum(positions - shift, unseen)
    row_at = np.full((len(branches), 1 + max(len(branch.tokens) for branch in branches)), KEPT_ROW)
    row_at[np.arange(len(branches)).repeat(lengths), order] = np.arange(len(order))
    return PackedRows(
        len(due.cached),
        due.commit,
        lengths,
        lengths,
        np.concatenate([branch.tokens[each.order] for branch, each in zip(branches, every, strict=True)]),
        order - unseen,
        _masks(branches, every, context),
        sampled,
        len(kept),
        positions,
        row_at[np.arange(len(branches)).repeat(list(map(len, columns))), predicting],
        editable,
        cached=due.cached - unseen,
        is_final=due.is_final,
    )


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


def _masks(branches: Sequence[Branch], every: Sequence[BranchRows], context: Context) -> Bool:
    """Return the masks of the branches' rows. Leading equal rows have the same mask in every branch."""
    longest = max((each.order for each in every), key=len)
    seen = attention_mask(longest, branches[-1].layout, context.params)
    masks = []
    for branch, each in zip(branches, every, strict=True):
        length = len(each.order)
        alike = each.order is longest or np.array_equal(each.order, longest[:length])
        mask = seen[:length, :length] if alike else attention_mask(each.order, branch.layout, context.params)
        masks.append(mask.ravel())
    return masks[0] if len(masks) == 1 else np.concatenate(masks)


def _as_in_first_round(branch: Branch) -> Branch:
    """Return `branch` as if its active blocks had just been opened."""
    blocks = (replace(block, rounds=0) if block.state is BlockState.ACTIVE else block for block in branch.blocks)
    return replace(branch, blocks=tuple(blocks))
