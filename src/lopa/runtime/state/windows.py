"""The windows of one request's branches: which rows a forward computes, on which cached rows, and what it is asked.

`DecodingPlan.cache` says which rows are cached. Finished blocks are final where a model sees nothing behind its own
block (block_causal, causal); elsewhere they are a good guess. The other caches are Fast-dLLM's for models that see the
whole sequence: rows are kept for a while although they would have to change, and computed anew at the next block.

A block's rows are those that speak of its positions. Where a row predicts the next position, they include the row
before the block, which speaks of its first position: it is computed in every round, so that what it says is as fresh as
what the others say. (Fast-dLLM's code for Dream keeps that row, and unmasks the first position in the block's first
round, however unsure it is.) See docs/reference/algorithm.md, section 2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.branch import Block, BlockState, Branch
from lopa.runtime.state.context import Context


@dataclass(frozen=True)
class SharedRows:
    """All windows of a request as one of S rows: the anchor's, then of every other branch those that only it has.

    No row is padding. (lopa.runtime.state.batch makes them.)
    """

    input_ids: Int64
    """[1, S]"""
    positions: Int64
    """[1, S]"""
    mask: Bool
    """[1, S, S]"""
    logits_index: Int64
    """[1, M]: the sampled rows of all branches, each once, ascending."""
    answers: Int64
    """[B, Q]: which of those M answers for a sampled row of a branch; any where that is padding or lacking."""


@dataclass(frozen=True)
class Windows:
    """The windows of one request's branches, all on the same rows of its prefix cache.

    `kept` columns of the sampled rows come before those of `asked`: when finished rows are committed and a row predicts
    the next position, column 0 is the last committed row, which alone predicts the first position behind it in all
    rounds until the next commit.
    """

    prefix: int
    """Rows of the prefix cache that every window sees; what is behind them is forgotten before the forward."""
    commit: int
    """Rows at the beginning that the winner commits (0: none)."""
    input_ids: Int64
    """[B, W]"""
    positions: Int64
    """[B, W], of the rows as the model counts them; any where there is padding."""
    mask: Bool
    """[B, W, W]"""
    lengths: tuple[int, ...]
    """Window rows of each branch, padding not counted; the anchor's shadow rows are its last."""
    asked: tuple[Int64, ...]
    """Positions of each branch whose candidates are wanted, ascending: its masked ones, unless published quirks or the
    layout say otherwise."""
    wanted: Int64
    """[B, Q]: absolute positions whose candidates are wanted: `kept` columns, then `asked`, then padding."""
    logits_index: Int64
    """[B, Q]: the window rows that predict them."""
    lacking: Bool
    """[B, Q]: positions that no row of the window predicts; the kept row of an earlier round does, and check_rows sees
    to it that it speaks of them."""
    kept: int
    """Columns before those of `asked`: 0 or 1."""
    judged: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[S]: unmasked positions of the anchor that shadow rows judge; what is said of them stands behind what it asks
    (lopa.runtime.state.shadow_rows)."""
    cached: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[prefix]: positions of the cached rows that every window sees, as the model counts them, in the cache's order."""
    shared: SharedRows | None = None
    """What the forward is given in place of the windows, where rows that are equal on several branches are computed
    once; the first `commit` rows are then those of every branch."""

    @property
    def counts(self) -> Int64:
        """[B]: sampled rows of each branch, padding not counted."""
        counts = np.array([self.kept + len(asked) for asked in self.asked])
        counts[-1] += len(self.judged)
        return counts

    @property
    def forward_rows(self) -> "Windows | SharedRows":
        """What the forward is given: input_ids, positions, mask and logits_index, of B branches or of one."""
        return self if self.shared is None else self.shared

    @property
    def computed_rows(self) -> int:
        """Rows that the forward is given, padding not counted."""
        return sum(self.lengths) if self.shared is None else self.shared.input_ids.size

    def branch_of_commit(self, winner: int) -> int:
        """Return the branch of the forward whose first rows are committed when `winner` wins."""
        return winner if self.shared is None else 0


def windows_from_branches(branches: tuple[Branch, ...], context: Context, *, anew: bool = False) -> Windows:
    """Return the windows of a round's branches. The anchor, the last of them, says what is to be cached.

    With `anew`, rows that are kept for a while are computed again, as in a block's first round.
    """
    plan, shift = context.plan, context.prediction_shift
    states = tuple(_as_in_first_round(branch) for branch in branches) if anew else branches
    reaches = [reach_of(branch, states[-1], plan) for branch in states]
    anchor = reaches[-1]
    prefix, commit = len(anchor.cached), anchor.commit
    lengths = tuple(len(each.order) for each in reaches)
    width = max(lengths)

    shape = (len(branches), width)
    input_ids = np.full(shape, context.pad_token, np.int64)
    positions = np.empty(shape, np.int64)
    positions[:] = prefix + np.arange(width)
    mask = np.zeros((*shape, width), np.bool_)
    longest = max(reaches, key=lambda each: len(each.order)).order
    seen = _seen(longest, branches[-1], plan)
    for row, (branch, each) in enumerate(zip(branches, reaches, strict=True)):
        length, order = len(each.order), each.order
        input_ids[row, :length] = branch.tokens[order]
        positions[row, :length] = order - branch.layout.unseen
        alike = np.array_equal(order, longest[:length])
        mask[row, :length, :length] = seen[:length, :length] if alike else _seen(order, branch, plan)
        padding = np.arange(length, width)
        mask[row, padding, padding] = True

    asked = tuple(
        _answered(asked_positions(branch, plan), each, shift) for branch, each in zip(branches, reaches, strict=True)
    )
    kept = 1 if commit and anchor.lasting and shift else 0
    # Padding asks for the window's first row; a forward is never asked for zero rows.
    wanted = np.full((len(branches), max(1, kept + max(map(len, asked)))), anchor.order[0] + shift, np.int64)
    wanted[:, :kept] = anchor.order[0] + commit
    for row, each_asked in enumerate(asked):
        wanted[row, kept : kept + len(each_asked)] = each_asked
    logits_index = np.empty_like(wanted)
    # No row predicts the first position that a row stands for. Where published quirks ask about it, its own answers.
    speaking = np.maximum(wanted - shift, branches[-1].layout.unseen)
    for row, each in enumerate(reaches):
        logits_index[row] = _rows_of_positions(each.order, speaking[row])
    lacking = logits_index < 0
    return Windows(
        prefix,
        commit,
        input_ids,
        positions,
        mask,
        lengths,
        asked,
        wanted,
        np.maximum(logits_index, 0),
        lacking,
        kept,
        cached=anchor.cached - branches[-1].layout.unseen,
    )


def check_rows(windows: Windows, *, prediction_shift: int, unseen: int, kept_for: int | None) -> None:
    """Raise RuntimeError unless every position that `windows` ask about is answered by a row that speaks of it.

    That is a row of the branch's window, or the kept row, which speaks of the position `kept_for` (None: there is no
    kept row). `unseen` as in Layout. Statistics of another position look like any others, so a wrong row would show as
    wrong text alone.
    """
    needed = np.arange(windows.wanted.shape[1]) < windows.counts[:, None]
    if windows.shared is None:
        spoken = np.take_along_axis(windows.positions, windows.logits_index, axis=1)
    else:
        spoken = windows.shared.positions[0, windows.shared.logits_index[0]][windows.shared.answers]
    spoken = np.where(windows.wanted == unseen, unseen, spoken + unseen + prediction_shift)
    if kept_for is None:
        right = ~windows.lacking & (spoken == windows.wanted)
    else:
        right = np.where(windows.lacking, kept_for, spoken) == windows.wanted
    if not right[needed].all():
        raise RuntimeError(
            f"no row speaks of the positions {np.unique(windows.wanted[needed & ~right])}, expected a computed or kept "
            "one for every position that a round asks about (this is a bug in lopa, please report it)"
        )


# Which positions are asked about and may be unmasked


def open_span(branch: Branch, block: Block, plan: DecodingPlan) -> tuple[int, int]:
    """Return the first and one behind the last position of an active block that may be unmasked now.

    That is the whole block; with sub-blocks, which are unmasked one after the other, the first that has a masked
    position (the last one where none has).
    """
    if plan.sub_block >= block.end - block.start:
        return block.start, block.end
    masked = np.flatnonzero(~branch.unmasked[block.start : block.end])
    inside = int(masked[0]) if len(masked) else block.end - block.start - 1
    start = block.start + inside // plan.sub_block * plan.sub_block
    return start, min(start + plan.sub_block, block.end)


def open_among(branch: Branch, positions: Int64, plan: DecodingPlan) -> Bool:
    """Return which of `positions` [n], ascending, are masked and may be unmasked now, [n]; none behind the branch."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        found[slice(*open_span(branch, block, plan))] = True
    return _flagged(found & ~branch.unmasked, positions)


def masked_among(branch: Branch, positions: Int64) -> Bool:
    """Return which of `positions` [n], ascending, are masked, [n]; none behind the branch."""
    return _flagged(~branch.unmasked, positions)


def asked_positions(branch: Branch, plan: DecodingPlan) -> Int64:
    """Return the positions whose candidates a round wants, ascending: the masked ones of all blocks that were opened.

    The published rules that unmask so many a step also ask about unmasked ones (docs/reference/algorithm.md, section
    12).
    """
    if plan.overwrites_unmasked:
        spans = [np.arange(block.start, block.end) for block in branch.active]
        return np.concatenate([np.empty(0, np.int64), *spans])
    return np.flatnonzero(~branch.unmasked[: branch.blocks[-1].end])


def _flagged(flags: Bool, positions: Int64) -> Bool:
    result = np.zeros(len(positions), np.bool_)
    inside = np.searchsorted(positions, len(flags))
    result[:inside] = flags[positions[:inside]]
    return result


# Which rows are computed and which are cached


@dataclass(frozen=True, slots=True)
class Reach:
    """The rows of one branch in a round."""

    cached: Int64
    """[P]: positions of the cached rows that they see, in the order of the cache."""
    order: Int64
    """[W]: positions of the rows, those to be committed first."""
    commit: int
    """How many of the first rows the cache gets."""
    lasting: bool = True
    """Whether those are final: rows of finished blocks."""
    partial: bool = False
    """True where no row predicts some masked positions of open blocks: they wait for a later round."""


def reach_of(branch: Branch, anchor: Branch, plan: DecodingPlan) -> Reach:
    """Return the rows of `branch` in a round of `anchor`, whose blocks say what is due."""
    return (_unmasked_first if plan.slides else _REACHES[plan.cache])(branch, anchor, plan)


def _finished_blocks(branch: Branch, anchor: Branch, _: DecodingPlan) -> Reach:
    """Blocks are committed when they are finished; the rows are all behind them."""
    due = anchor.due
    start = (due or anchor.active)[0].start
    commit = due[-1].end - start if due else 0
    return Reach(np.arange(branch.layout.unseen, start), np.arange(start, len(branch.tokens)), commit)


def _unmasked_first(branch: Branch, anchor: Branch, plan: DecodingPlan) -> Reach:
    """As `_finished_blocks`, for rows that see only those before them: first unmasked ones, then masks (WeDLM).

    The due rows, all unmasked and in front, so depend on nothing but their own tokens and those before them.
    """
    found = _finished_blocks(branch, anchor, plan)
    return replace(found, order=found.order[np.argsort(~branch.unmasked[found.order], kind="stable")])


def _nothing(branch: Branch, _: Branch, __: DecodingPlan) -> Reach:
    """Every row in every round (LLaDA)."""
    return Reach(np.empty(0, np.int64), np.arange(len(branch.tokens)), 0)


def _before_block(branch: Branch, anchor: Branch, _: DecodingPlan) -> Reach:
    """A block's first round computes every row and keeps those before the block's (Fast-dLLM's prefix cache)."""
    block, length = anchor.active[0], len(branch.tokens)
    first = block.start - branch.layout.prediction_shift
    if not block.rounds:
        return Reach(np.empty(0, np.int64), np.arange(length), first, lasting=False)
    return Reach(np.arange(first), np.arange(first, length), 0)


def _around_block(branch: Branch, anchor: Branch, _: DecodingPlan) -> Reach:
    """A block's first round computes every row and keeps those before and behind the block's (Fast-dLLM's dual cache).

    Rows of the cache are a set: keys carry their positions. So the rows to be kept come first in the window.
    """
    block = anchor.active[0]
    outside, inside = _parted(0, len(branch.tokens), block.start - branch.layout.prediction_shift, block.end)
    if not block.rounds:
        return Reach(np.empty(0, np.int64), np.concatenate([outside, inside]), len(outside), lasting=False)
    return Reach(outside, inside, 0)


def _around_sub_block(branch: Branch, anchor: Branch, plan: DecodingPlan) -> Reach:
    """As `_finished_blocks`; within a block also rows outside the open sub-block, once its first position is unmasked
    (Fast-dLLM v2's block cache). Until then every round computes the block whole and keeps them anew.

    So what is asked of the sub-block's rows alone is never its first position, of which the row before it may speak.
    """
    if not anchor.active:
        return _finished_blocks(branch, anchor, plan)
    block = anchor.active[0]
    before = np.arange(branch.layout.unseen, block.start)
    span = open_span(anchor, block, plan)
    outside, inside = _parted(block.start, block.end, *span)
    if block.rounds and anchor.unmasked[span[0]]:
        return Reach(np.concatenate([before, outside]), inside, 0, partial=True)
    return Reach(before, np.concatenate([outside, inside]), len(outside), lasting=False)


_REACHES: Mapping[str, Callable[[Branch, Branch, DecodingPlan], Reach]] = {
    "blocks": _finished_blocks,
    "none": _nothing,
    "prefix": _before_block,
    "dual": _around_block,
    "sub_block": _around_sub_block,
}


def _parted(first: int, end: int, inner: int, inner_end: int) -> tuple[Int64, Int64]:
    """Return the positions from `first` to `end` without those from `inner` to `inner_end`, and those."""
    outside = np.concatenate([np.arange(first, inner), np.arange(inner_end, end)])
    return outside, np.arange(inner, inner_end)


def _answered(asked: Int64, reach: Reach, prediction_shift: int) -> Int64:
    """Return the positions among `asked` that the rows of the round predict."""
    return asked[np.isin(asked - prediction_shift, reach.order)] if reach.partial else asked


def _as_in_first_round(branch: Branch) -> Branch:
    """Return `branch` as if its active blocks had just been opened."""
    blocks = (replace(block, rounds=0) if block.state is BlockState.ACTIVE else block for block in branch.blocks)
    return replace(branch, blocks=tuple(blocks))


def _rows_of_positions(order: Int64, positions: Int64) -> Int64:
    """Return the place of each of `positions` in `order`, -1 for those that are not there."""
    rows = np.full(max(int(order.max()), int(positions.max())) + 1, -1, np.int64)
    rows[order] = np.arange(len(order))
    return rows[positions]


def _seen(order: Int64, branch: Branch, plan: DecodingPlan) -> Bool:
    """Return which row sees which, [W, W], for rows at the positions `order`."""
    if plan.window == "full":
        return np.ones((len(order), len(order)), np.bool_)
    if plan.window == "causal":
        return np.tri(len(order), dtype=np.bool_)
    number = branch.layout.numbers(order)
    return number[:, None] >= number[None, :]
