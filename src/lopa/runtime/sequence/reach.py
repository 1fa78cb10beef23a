"""Which rows a round computes, on which rows of the cache, and which it leaves there: GenerationConfig.cache says so.

Finished blocks are final where a model sees nothing behind its own block (block_causal, causal); elsewhere they are a
good guess. Everything else is what Fast-dLLM's caches do for models that see the whole sequence: rows are kept for a
while although they would have to change, and computed anew at the next block. Pure; knows no tokens' meaning and no
device.

A block's rows are those that speak of its positions. Where a row predicts the next position, they include the row
before the block, which speaks of its first position: it is computed in every round, so that what it says is as fresh as
what the others say. (Fast-dLLM's code for Dream keeps that row, and unmasks the first position in the block's first
round, however unsure it is.)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.blocks import active, to_cache
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.opened import open_span


@dataclass(frozen=True, slots=True)
class Reach:
    """The rows of one branch in a round."""

    cached: Int64
    """[P], the positions of the cached rows that they see, in the order of the cache."""
    order: Int64
    """[W], the positions of the rows, those to be committed first."""
    commit: int
    """How many of the first rows the cache gets."""
    lasting: bool = True
    """Whether those are final: rows of finished blocks."""
    partial: bool = False
    """True where no row predicts some masked positions of open blocks: they wait for a later round."""

    @property
    def prefix(self) -> int:
        """Number of cached rows that they see."""
        return len(self.cached)


Reaches = Callable[[Branch, Branch, GenerationConfig], Reach]
"""Of a branch and the anchor, whose blocks say what is due."""


def _finished_blocks(branch: Branch, anchor: Branch, _: GenerationConfig) -> Reach:
    """Blocks are committed when they are finished; the rows are all behind them."""
    due = to_cache(anchor.blocks)
    start = (due or active(anchor.blocks))[0].start
    commit = due[-1].end - start if due else 0
    return Reach(np.arange(branch.layout.unseen, start), np.arange(start, len(branch.tokens)), commit)


def _decided_first(branch: Branch, anchor: Branch, config: GenerationConfig) -> Reach:
    """As `_finished_blocks`, of rows that see only those before them: first decided ones, then masks (WeDLM).

    The due rows, all decided and in front, so depend on nothing but their own tokens and those before them.
    """
    found = _finished_blocks(branch, anchor, config)
    return replace(found, order=found.order[np.argsort(~branch.decided[found.order], kind="stable")])


def _nothing(branch: Branch, _: Branch, __: GenerationConfig) -> Reach:
    """Every row in every round (LLaDA)."""
    return Reach(np.empty(0, np.int64), np.arange(len(branch.tokens)), 0)


def _before_block(branch: Branch, anchor: Branch, _: GenerationConfig) -> Reach:
    """A block's first round computes every row and keeps those before the block's (Fast-dLLM's prefix cache)."""
    block, length = active(anchor.blocks)[0], len(branch.tokens)
    first = block.start - branch.layout.prediction_shift
    if not block.rounds:
        return Reach(np.empty(0, np.int64), np.arange(length), first, lasting=False)
    return Reach(np.arange(first), np.arange(first, length), 0)


def _around_block(branch: Branch, anchor: Branch, _: GenerationConfig) -> Reach:
    """A block's first round computes every row and keeps those before and behind the block's (Fast-dLLM's dual cache).

    Rows of the cache are a set: keys carry their positions. So the rows to be kept come first in the window.
    """
    block = active(anchor.blocks)[0]
    outside, inside = _parted(0, len(branch.tokens), block.start - branch.layout.prediction_shift, block.end)
    if not block.rounds:
        return Reach(np.empty(0, np.int64), np.concatenate([outside, inside]), len(outside), lasting=False)
    return Reach(outside, inside, 0)


def _around_sub_block(branch: Branch, anchor: Branch, config: GenerationConfig) -> Reach:
    """As `_finished_blocks`; within a block also rows outside the open sub-block, once its first position is decided
    (Fast-dLLM v2's block cache). Until then every round computes the block whole and keeps them anew.

    So what is asked of the sub-block's rows alone is never its first position, of which the row before it may speak.
    """
    if not active(anchor.blocks):
        return _finished_blocks(branch, anchor, config)
    block = active(anchor.blocks)[0]
    before = np.arange(branch.layout.unseen, block.start)
    span = open_span(anchor, block, config)
    outside, inside = _parted(block.start, block.end, *span)
    if block.rounds and anchor.decided[span[0]]:
        return Reach(np.concatenate([before, outside]), inside, 0, partial=True)
    return Reach(before, np.concatenate([outside, inside]), len(outside), lasting=False)


def reach_from_config(config: GenerationConfig) -> Reaches:
    """The rule that a config asks for."""
    return _decided_first if config.slides else _REACHES[config.cache]


_REACHES: Mapping[str, Reaches] = {
    "blocks": _finished_blocks,
    "none": _nothing,
    "prefix": _before_block,
    "dual": _around_block,
    "sub_block": _around_sub_block,
}


def _parted(first: int, end: int, inner: int, inner_end: int) -> tuple[Int64, Int64]:
    """Positions from `first` to `end` without those from `inner` to `inner_end`, and those."""
    outside = np.concatenate([np.arange(first, inner), np.arange(inner_end, end)])
    return outside, np.arange(inner, inner_end)
