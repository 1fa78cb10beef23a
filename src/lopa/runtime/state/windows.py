"""The windows of one request's branches: computed rows, cached rows and sampled positions of a forward.

`DecodingPlan.cache` determines which rows are cached. Rows of finished blocks are exact if rows attend to nothing
behind their block (block_causal, causal), and otherwise approximate. The other caches come from Fast-dLLM, for models
that attend to the whole sequence. They cache rows temporarily although later tokens would change them, and recompute
them at the next block.

The rows of a block are the rows that predict its positions. If a row predicts the next position, they include the row
before the block, which predicts its first position and is computed in every round. (Fast-dLLM's code for Dream caches
that row, and unmasks the first position in the block's first round at any confidence.) See docs/reference/algorithm.md,
section 2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.branch import Block, BlockState, Branch
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout


@dataclass(frozen=True)
class SharedRows:
    """All windows of a request merged into one window of S rows: the anchor's rows, then the rows in which other
    branches differ. No row is padding. lopa.runtime.state.batch creates it.
    """

    input_ids: Int64
    """[1, S]: token ids of the rows."""
    positions: Int64
    """[1, S]: positions of the rows, as the model counts them."""
    mask: Bool
    """[1, S, S]: which row attends to which."""
    logits_index: Int64
    """[1, M]: sampled rows of all branches, each once, ascending."""
    answers: Int64
    """[B, Q]: index of each branch's sampled row among the M results; any value for padding and the kept row."""


@dataclass(frozen=True)
class Windows:
    """The windows of one request's branches, all on the same rows of its prefix cache.

    The sampled columns begin with `kept_columns` columns, then come the columns of `sampled` and `editable`. When
    finished rows are committed and a row predicts the next position, column 0 belongs to the last committed row. It
    alone predicts the first position behind it in all rounds until the next commit.
    """

    prefix: int
    """Number of cached rows that every window attends to. The session drops later ones before the forward."""
    commit: int
    """Number of leading rows that the winner commits, 0 for none."""
    input_ids: Int64
    """[B, W]: token ids of the rows."""
    positions: Int64
    """[B, W]: positions as the model counts them; any value for padding."""
    mask: Bool
    """[B, W, W]: which row attends to which."""
    lengths: tuple[int, ...]
    """Number of window rows of each branch without padding. The anchor's last rows are its shadow rows, if any."""
    sampled: tuple[Int64, ...]
    """Sampled positions of each branch, ascending: its masked ones, with exceptions for published quirks and
    layouts."""
    logits_positions: Int64
    """[B, Q]: sampled positions, absolute, in the order of `kept_columns` columns, `sampled` and padding."""
    logits_index: Int64
    """[B, Q]: window rows that predict them."""
    from_kept_row: Bool
    """[B, Q]: True for positions that no row of the window predicts but the kept row of an earlier round does (see
    check_rows)."""
    kept_columns: int
    """Number of columns before the columns of `sampled`: 0 or 1."""
    remaskable: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[S]: unmasked positions of the anchor that shadow rows verify. Their columns follow the columns of its `sampled`
    positions (lopa.runtime.state.shadow_rows)."""
    editable: tuple[Int64, ...] = ()
    """Unmasked positions of each branch that the round may edit, ascending; empty if the decode does not edit. Their
    columns follow the columns of the branch's `sampled` positions."""
    cached: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[prefix]: positions of the cached rows, as the model counts them, in the cache's order."""
    is_final: bool = True
    """True if the rows to commit are final: rows of finished blocks."""
    shared: SharedRows | None = None
    """The shared window that replaces these windows in the forward, if any; its first `commit` rows are the same for
    every branch."""

    @property
    def counts(self) -> Int64:
        """Number of sampled rows of each branch without padding, [B]."""
        counts = np.array([self.kept_columns + len(each) for each in self.sampled])
        counts[-1] += len(self.remaskable)
        if self.editable:
            counts += [len(each) for each in self.editable]
        return counts

    @property
    def forward_rows(self) -> "Windows | SharedRows":
        """Input of the forward: input_ids, positions, mask and logits_index, of B branches or of one shared window."""
        return self if self.shared is None else self.shared

    @property
    def computed_rows(self) -> int:
        """Number of rows of the forward without padding."""
        return sum(self.lengths) if self.shared is None else self.shared.input_ids.size

    def branch_of_commit(self, winner: int) -> int:
        """Return the branch of the forward whose first rows are committed if `winner` wins."""
        return winner if self.shared is None else 0


def windows_from_branches(branches: tuple[Branch, ...], context: Context, *, anew: bool = False) -> Windows:
    """Return the windows of a round's `branches`. The anchor, the last one, determines which rows are cached.

    With `anew`, temporarily cached rows are computed again, as in a block's first round.
    """
    plan, shift = context.plan, context.prediction_shift
    states = tuple(_as_in_first_round(branch) for branch in branches) if anew else branches
    branch_rows = [rows_from_branch(branch, states[-1], plan) for branch in states]
    anchor = branch_rows[-1]
    prefix, commit = len(anchor.cached), anchor.commit
    lengths = tuple(len(each.order) for each in branch_rows)
    width = max(lengths)

    shape = (len(branches), width)
    input_ids = np.full(shape, context.pad_token, np.int64)
    positions = np.empty(shape, np.int64)
    positions[:] = prefix + np.arange(width)
    mask = np.zeros((*shape, width), np.bool_)
    longest = max(branch_rows, key=lambda each: len(each.order)).order
    seen = attention_mask(longest, branches[-1].layout, plan)
    for row, (branch, each) in enumerate(zip(branches, branch_rows, strict=True)):
        length, order = len(each.order), each.order
        input_ids[row, :length] = branch.tokens[order]
        positions[row, :length] = order - branch.layout.unseen
        alike = np.array_equal(order, longest[:length])
        mask[row, :length, :length] = seen[:length, :length] if alike else attention_mask(order, branch.layout, plan)
        padding = np.arange(length, width)
        mask[row, padding, padding] = True

    sampled = tuple(
        _predicted(sampled_positions(branch, plan), each, shift)
        for branch, each in zip(branches, branch_rows, strict=True)
    )
    editable = tuple(editable_positions(branch) for branch in branches) if plan.edits else ()
    predicted = tuple(map(np.concatenate, zip(sampled, editable, strict=True))) if editable else sampled
    kept = 1 if commit and anchor.is_final and shift else 0
    # Padding samples the window's first row, since a forward needs at least one sampled row.
    logits_positions = np.full(
        (len(branches), max(1, kept + max(map(len, predicted)))), anchor.order[0] + shift, np.int64
    )
    logits_positions[:, :kept] = anchor.order[0] + commit
    for row, each_predicted in enumerate(predicted):
        logits_positions[row, kept : kept + len(each_predicted)] = each_predicted
    logits_index = np.empty_like(logits_positions)
    # No row predicts the first position that has a row. Published quirks that sample this position use its own row.
    predicting = np.maximum(logits_positions - shift, branches[-1].layout.unseen)
    for row, each in enumerate(branch_rows):
        logits_index[row] = _rows_of_positions(each.order, predicting[row])
    from_kept_row = logits_index < 0
    return Windows(
        prefix,
        commit,
        input_ids,
        positions,
        mask,
        lengths,
        sampled,
        logits_positions,
        np.maximum(logits_index, 0),
        from_kept_row,
        kept,
        editable=editable,
        cached=anchor.cached - branches[-1].layout.unseen,
        is_final=anchor.is_final,
    )


def check_rows(windows: Windows, *, prediction_shift: int, unseen: int, kept_for: int | None) -> None:
    """Raise RuntimeError if no row predicts some sampled position of `windows`.

    A position is predicted by a row of the branch's window or by the kept row, which predicts position `kept_for` (None
    without a kept row). `unseen` is `Layout.unseen`. Without this check, a wrong row would cause wrong text without an
    error.
    """
    needed = np.arange(windows.logits_positions.shape[1]) < windows.counts[:, None]
    if windows.shared is None:
        predicted = np.take_along_axis(windows.positions, windows.logits_index, axis=1)
    else:
        predicted = windows.shared.positions[0, windows.shared.logits_index[0]][windows.shared.answers]
    predicted = np.where(windows.logits_positions == unseen, unseen, predicted + unseen + prediction_shift)
    if kept_for is None:
        right = ~windows.from_kept_row & (predicted == windows.logits_positions)
    else:
        right = np.where(windows.from_kept_row, kept_for, predicted) == windows.logits_positions
    if not right[needed].all():
        raise RuntimeError(
            f"no row predicts the positions {np.unique(windows.logits_positions[needed & ~right])}, "
            "expected a computed or kept row for every sampled position (this is a bug in lopa, please report it)"
        )


# Sampled positions, and which of them may be unmasked


def open_span(branch: Branch, block: Block, plan: DecodingPlan) -> tuple[int, int]:
    """Return the start and end of the positions of an active block that may be unmasked now.

    That is the whole block. With sub-blocks, which are unmasked one after another, it is the first one with a masked
    position, or the last one if none has.
    """
    if plan.sub_block >= block.end - block.start:
        return block.start, block.end
    masked = np.flatnonzero(~branch.unmasked[block.start : block.end])
    inside = int(masked[0]) if len(masked) else block.end - block.start - 1
    start = block.start + inside // plan.sub_block * plan.sub_block
    return start, min(start + plan.sub_block, block.end)


def open_among(branch: Branch, positions: Int64, plan: DecodingPlan) -> Bool:
    """Return which of `positions` [n], ascending, are masked and may be unmasked now, [n]. Positions behind the branch
    are False."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        found[slice(*open_span(branch, block, plan))] = True
    return _flags_at(found & ~branch.unmasked, positions)


def masked_among(branch: Branch, positions: Int64) -> Bool:
    """Return which of `positions` [n], ascending, are masked, [n]. Positions behind the branch are False."""
    return _flags_at(~branch.unmasked, positions)


def sampled_positions(branch: Branch, plan: DecodingPlan) -> Int64:
    """Return the positions that a round samples, ascending: the masked ones of all opened blocks.

    The published rules that unmask a fixed number per step also sample unmasked ones (docs/concepts/decoding.md,
    "Reference mode").
    """
    if plan.overwrites_unmasked:
        spans = [np.arange(block.start, block.end) for block in branch.active]
        return np.concatenate([np.empty(0, np.int64), *spans])
    return np.flatnonzero(~branch.unmasked[: branch.blocks[-1].end])


def editable_positions(branch: Branch) -> Int64:
    """Return the positions that a round may edit, ascending: unmasked ones of active blocks behind the prompt."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        found[block.start : block.end] = True
    found[: branch.layout.prompt] = False
    return np.flatnonzero(found & branch.unmasked)


def _flags_at(flags: Bool, positions: Int64) -> Bool:
    result = np.zeros(len(positions), np.bool_)
    inside = np.searchsorted(positions, len(flags))
    result[:inside] = flags[positions[:inside]]
    return result


# Computed rows and cached rows


@dataclass(frozen=True, slots=True)
class BranchRows:
    """The rows of one branch in a round."""

    cached: Int64
    """[P]: positions of the cached rows that they attend to, in the cache's order."""
    order: Int64
    """[W]: positions of the rows, with the rows to commit first."""
    commit: int
    """Number of leading rows to commit."""
    is_final: bool = True
    """True if the committed rows are final: rows of finished blocks."""
    is_partial: bool = False
    """True if no row predicts some masked positions of open blocks, which wait for a later round."""


def rows_from_branch(branch: Branch, anchor: Branch, plan: DecodingPlan) -> BranchRows:
    """Return the rows of `branch` in a round of `anchor`, whose blocks determine which rows are due."""
    return (_rows_of_sliding_block if plan.slides else _ROWS_BY_CACHE[plan.cache])(branch, anchor, plan)


def _rows_with_block_cache(branch: Branch, anchor: Branch, _: DecodingPlan) -> BranchRows:
    """Return the rows behind the cached blocks; finished blocks are committed."""
    due = anchor.due
    start = (due or anchor.active)[0].start
    commit = due[-1].end - start if due else 0
    return BranchRows(np.arange(branch.layout.unseen, start), np.arange(start, len(branch.tokens)), commit)


def _rows_of_sliding_block(branch: Branch, anchor: Branch, plan: DecodingPlan) -> BranchRows:
    """Return the rows of a sliding block: unmasked positions first, then masked ones (WeDLM).

    Rows attend only to rows before them. The due rows, unmasked and leading, therefore depend only on their own and
    earlier tokens.
    """
    found = _rows_with_block_cache(branch, anchor, plan)
    return replace(found, order=found.order[np.argsort(~branch.unmasked[found.order], kind="stable")])


def _rows_without_cache(branch: Branch, _: Branch, __: DecodingPlan) -> BranchRows:
    """Return every row, in every round (LLaDA)."""
    return BranchRows(np.empty(0, np.int64), np.arange(len(branch.tokens)), 0)


def _rows_with_prefix_cache(branch: Branch, anchor: Branch, _: DecodingPlan) -> BranchRows:
    """Return the rows with Fast-dLLM's prefix cache.

    A block's first round computes every row and keeps the rows before the block.
    """
    block, length = anchor.active[0], len(branch.tokens)
    first = block.start - branch.layout.prediction_shift
    if not block.rounds:
        return BranchRows(np.empty(0, np.int64), np.arange(length), first, is_final=False)
    return BranchRows(np.arange(first), np.arange(first, length), 0)


def _rows_with_dual_cache(branch: Branch, anchor: Branch, _: DecodingPlan) -> BranchRows:
    """Return the rows with Fast-dLLM's dual cache.

    A block's first round computes every row and keeps the rows before and behind the block. Keys contain their
    positions, so cached rows may be in any order. Rows to cache come first in the window.
    """
    block = anchor.active[0]
    outside, inside = _split_range(0, len(branch.tokens), block.start - branch.layout.prediction_shift, block.end)
    if not block.rounds:
        return BranchRows(np.empty(0, np.int64), np.concatenate([outside, inside]), len(outside), is_final=False)
    return BranchRows(outside, inside, 0)


def _rows_with_sub_block_cache(branch: Branch, anchor: Branch, plan: DecodingPlan) -> BranchRows:
    """Return the rows with Fast-dLLM v2's block cache.

    Finished blocks are committed. Within a block, rows outside the open sub-block are kept once the sub-block's first
    position is unmasked. Until then every round computes the whole block and keeps these rows again. The sub-block's
    rows alone therefore never have to predict its first position, which the row before it may predict.
    """
    if not anchor.active:
        return _rows_with_block_cache(branch, anchor, plan)
    block = anchor.active[0]
    before = np.arange(branch.layout.unseen, block.start)
    span = open_span(anchor, block, plan)
    outside, inside = _split_range(block.start, block.end, *span)
    if block.rounds and anchor.unmasked[span[0]]:
        return BranchRows(np.concatenate([before, outside]), inside, 0, is_partial=True)
    return BranchRows(before, np.concatenate([outside, inside]), len(outside), is_final=False)


_ROWS_BY_CACHE: Mapping[str, Callable[[Branch, Branch, DecodingPlan], BranchRows]] = {
    "blocks": _rows_with_block_cache,
    "none": _rows_without_cache,
    "prefix": _rows_with_prefix_cache,
    "dual": _rows_with_dual_cache,
    "sub_block": _rows_with_sub_block_cache,
}


def _split_range(first: int, end: int, inner: int, inner_end: int) -> tuple[Int64, Int64]:
    """Return the positions from `first` to `end` outside the range from `inner` to `inner_end`, and the positions
    inside it.
    """
    outside = np.concatenate([np.arange(first, inner), np.arange(inner_end, end)])
    return outside, np.arange(inner, inner_end)


def _predicted(sampled: Int64, rows: BranchRows, prediction_shift: int) -> Int64:
    """Return the positions of `sampled` that the round's rows predict."""
    return sampled[np.isin(sampled - prediction_shift, rows.order)] if rows.is_partial else sampled


def _as_in_first_round(branch: Branch) -> Branch:
    """Return `branch` as if its active blocks had just been opened."""
    blocks = (replace(block, rounds=0) if block.state is BlockState.ACTIVE else block for block in branch.blocks)
    return replace(branch, blocks=tuple(blocks))


def _rows_of_positions(order: Int64, positions: Int64) -> Int64:
    """Return the index of each of `positions` in `order`, -1 for positions that are not there."""
    rows = np.full(max(int(order.max()), int(positions.max())) + 1, -1, np.int64)
    rows[order] = np.arange(len(order))
    return rows[positions]


def attention_mask(order: Int64, layout: Layout, plan: DecodingPlan) -> Bool:
    """Return which row attends to which, [W, W], for rows at the positions `order`."""
    if plan.window == "full":
        return np.ones((len(order), len(order)), np.bool_)
    if plan.window == "causal":
        return np.tri(len(order), dtype=np.bool_)
    number = layout.block_numbers(order)
    return number[:, None] >= number[None, :]
