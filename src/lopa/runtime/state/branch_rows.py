"""The rows of a round: which rows of each branch are computed and sampled, and which are cached.

`DecodingParams.cache` determines which rows are cached. Rows of finished blocks are exact if rows attend to nothing
behind their block (block_causal, causal), and otherwise approximate. The other caches come from Fast-dLLM, for models
that attend to the whole sequence. They cache rows temporarily although later tokens would change them, and recompute
them at the next block.

The rows of a block are the rows that predict its positions. If a row predicts the next position, they include the row
before the block, which predicts its first position and is computed in every round. (Fast-dLLM's code for Dream caches
that row, and unmasks the first position in the block's first round at any confidence.) See docs/reference/algorithm.md,
section 2.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import BlockState, Branch, open_span
from lopa.runtime.state.context import Context
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.packed_rows import KEPT_ROW, PackedRows


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


def rows_from_branch(branch: Branch, anchor: Branch, params: DecodingParams) -> BranchRows:
    """Return the rows of `branch` in a round of `anchor`, whose blocks determine which rows are due.

    Except with a sliding block, they depend on no more of `branch` than its length and layout.
    """
    return (_rows_of_sliding_block if params.slides else _ROWS_BY_CACHE[params.cache])(branch, anchor, params)


def _rows_with_block_cache(branch: Branch, anchor: Branch, _: DecodingParams) -> BranchRows:
    """Return the rows behind the cached blocks; finished blocks are committed."""
    due = anchor.due
    start = (due or anchor.active)[0].start
    commit = due[-1].end - start if due else 0
    return BranchRows(np.arange(branch.layout.unseen, start), np.arange(start, len(branch.tokens)), commit)


def _rows_of_sliding_block(branch: Branch, anchor: Branch, params: DecodingParams) -> BranchRows:
    """Return the rows of a sliding block: unmasked positions first, then masked ones (WeDLM).

    Rows attend only to rows before them. The due rows, unmasked and leading, therefore depend only on their own and
    earlier tokens.
    """
    found = _rows_with_block_cache(branch, anchor, params)
    return replace(found, order=found.order[np.argsort(~branch.unmasked[found.order], kind="stable")])


def _rows_without_cache(branch: Branch, _: Branch, __: DecodingParams) -> BranchRows:
    """Return every row, in every round (LLaDA)."""
    return BranchRows(np.empty(0, np.int64), np.arange(len(branch.tokens)), 0)


def _rows_with_prefix_cache(branch: Branch, anchor: Branch, _: DecodingParams) -> BranchRows:
    """Return the rows with Fast-dLLM's prefix cache.

    A block's first round computes every row and keeps the rows before the block.
    """
    block, length = anchor.active[0], len(branch.tokens)
    first = block.start - branch.layout.prediction_shift
    if not block.rounds:
        return BranchRows(np.empty(0, np.int64), np.arange(length), first, is_final=False)
    return BranchRows(np.arange(first), np.arange(first, length), 0)


def _rows_with_dual_cache(branch: Branch, anchor: Branch, _: DecodingParams) -> BranchRows:
    """Return the rows with Fast-dLLM's dual cache.

    A block's first round computes every row and keeps the rows before and behind the block. Keys contain their
    positions, so cached rows may be in any order. Rows to cache come first in the window.
    """
    block = anchor.active[0]
    outside, inside = _split_range(0, len(branch.tokens), block.start - branch.layout.prediction_shift, block.end)
    if not block.rounds:
        return BranchRows(np.empty(0, np.int64), np.concatenate([outside, inside]), len(outside), is_final=False)
    return BranchRows(outside, inside, 0)


def _rows_with_sub_block_cache(branch: Branch, anchor: Branch, params: DecodingParams) -> BranchRows:
    """Return the rows with Fast-dLLM v2's block cache.

    Finished blocks are committed. Within a block, rows outside the open sub-block are kept once the sub-block's first
    position is unmasked. Until then every round computes the whole block and keeps these rows again. The sub-block's
    rows alone therefore never have to predict its first position, which the row before it may predict.
    """
    if not anchor.active:
        return _rows_with_block_cache(branch, anchor, params)
    block = anchor.active[0]
    before = np.arange(branch.layout.unseen, block.start)
    span = open_span(anchor, block, params)
    outside, inside = _split_range(block.start, block.end, *span)
    if block.rounds and anchor.unmasked[span[0]]:
        return BranchRows(np.concatenate([before, outside]), inside, 0, is_partial=True)
    return BranchRows(before, np.concatenate([outside, inside]), len(outside), is_final=False)


_ROWS_BY_CACHE: Mapping[str, Callable[[Branch, Branch, DecodingParams], BranchRows]] = {
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


def attention_mask(order: Int64, layout: Layout, params: DecodingParams) -> Bool:
    """Return which row attends to which, [W, W], for rows at the positions `order`."""
    if params.attention == "full":
        return np.ones((len(order), len(order)), np.bool_)
    if params.attention == "causal":
        return np.tri(len(order), dtype=np.bool_)
    number = layout.block_numbers(order)
    return number[:, None] >= number[None, :]


def sampled_positions(branch: Branch, params: DecodingParams) -> Int64:
    """Return the positions that a round samples, ascending: the masked ones of all opened blocks.

    The published rules that unmask a fixed number per step also sample unmasked ones (docs/concepts/decoding.md,
    "Reference mode").
    """
    if params.overwrites_unmasked:
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
