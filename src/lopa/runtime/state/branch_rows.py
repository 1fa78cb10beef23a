"""The rows of one branch in a round: which are computed, and which are cached.

`DecodingParams.cache` determines which rows are cached. Rows of finished blocks are exact if rows attend to nothing
behind their block (block_causal, causal), and otherwise approximate. The other caches come from Fast-dLLM, for models
that attend to the whole sequence. They cache rows temporarily although later tokens would change them, and recompute
them at the next block.

The rows of a block are the rows that predict its positions. If a row predicts the next position, they include the row
before the block, which predicts its first position and is computed in every round. (Fast-dLLM's code for Dream caches
that row, and unmasks the first position in the block's first round at any confidence.) See docs/reference/algorithm.md,
section 2.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.layout import Layout
from lopa.runtime.state.sampled_positions import open_span


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
