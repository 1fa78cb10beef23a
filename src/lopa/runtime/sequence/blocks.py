"""Blocks of a sequence and their states: D2F's pipeline (docs/lopa.md, sections 1 and 4). Pure; knows no tokens."""

from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import numpy as np

from lopa.runtime.contract import Bool


class BlockState(Enum):
    """Where a block stands: being decoded, decoded and due for the cache, or in the cache."""

    ACTIVE = "active"
    TO_CACHE = "to_cache"
    IN_CACHE = "in_cache"


@dataclass(frozen=True, slots=True)
class Block:
    """Positions [start, end) of a sequence; block 0 is the prompt, or its whole blocks. `masks` counts undecided ones.

    `complete` means that the block before is (nearly) decoded, so that this one may always fill a position. It is
    never taken back. `rounds` counts those in which it was active.
    """

    start: int
    end: int
    masks: int
    state: BlockState
    complete: bool
    rounds: int = 0
    accepted: int | None = None
    """Positions that it decided in its last round, where a rule takes back; None before its first."""

    @property
    def progress(self) -> float:
        """Decided share, 1 for an empty block."""
        total = self.end - self.start
        return (total - self.masks) / total if total else 1.0


Blocks = tuple[Block, ...]


def prompt_block(length: int, *, cached: bool = False) -> Block:
    """Block 0: the prompt, decided, to be cached by the first forward unless it is `cached` already."""
    return Block(0, length, masks=0, state=BlockState.IN_CACHE if cached else BlockState.TO_CACHE, complete=True)


def with_new_block(blocks: Blocks, size: int, masks: int | None = None) -> Blocks:
    """`blocks` and a fresh active block of `size` positions behind them, `masks` of them undecided (None: all)."""
    end = blocks[-1].end
    undecided = size if masks is None else masks
    return (*blocks, Block(end, end + size, masks=undecided, state=BlockState.ACTIVE, complete=False))


def with_longer_block(blocks: Blocks, more: int) -> Blocks:
    """`blocks`, the last of which, an active one, is longer by `more` undecided positions."""
    last = blocks[-1]
    return (*blocks[:-1], replace(last, end=last.end + more, masks=last.masks + more))


def with_complete_flags(blocks: Blocks, decoded_token_threshold: float) -> Blocks:
    """`blocks`, each flagged complete whose predecessor has reached the threshold."""
    if all(block.complete for block in blocks):
        return blocks
    return blocks[:1] + tuple(
        block if block.complete or before.progress < decoded_token_threshold else replace(block, complete=True)
        for before, block in pairwise(blocks)
    )


def with_counted_masks(blocks: Blocks, decided: Bool) -> Blocks:
    """`blocks` with the masks of active ones counted anew; `decided` [positions]."""
    return tuple(
        replace(block, masks=_masks(block, decided)) if block.state is BlockState.ACTIVE else block for block in blocks
    )


def active(blocks: Blocks) -> Blocks:
    """The blocks being decoded."""
    return tuple(block for block in blocks if block.state is BlockState.ACTIVE)


def to_cache(blocks: Blocks) -> Blocks:
    """The blocks due for the cache; always neighbours."""
    return tuple(block for block in blocks if block.state is BlockState.TO_CACHE)


def after_round(blocks: Blocks, decided: Bool, may_finish: frozenset[int]) -> Blocks:
    """States after a round (section 6 K): what was due is cached, masks are recounted, finished blocks fall due.

    `decided` [positions]; `may_finish` holds the starts of the blocks that were decided before a lookahead token was
    written: one that only the lookahead completed falls due a round later. A block behind an active one stays active.
    """
    result: list[Block] = []
    behind_active = False
    for block in blocks:
        if block.state is BlockState.TO_CACHE:
            result.append(replace(block, state=BlockState.IN_CACHE))
        elif block.state is BlockState.IN_CACHE:
            result.append(block)
        else:
            masks = _masks(block, decided)
            due = masks == 0 and block.start in may_finish and not behind_active
            state = BlockState.TO_CACHE if due else BlockState.ACTIVE
            result.append(replace(block, masks=masks, state=state, rounds=block.rounds + 1))
            behind_active = behind_active or not due
    return tuple(result)


def _masks(block: Block, decided: Bool) -> int:
    return int(block.end - block.start - np.count_nonzero(decided[block.start : block.end]))


def after_slide(blocks: Blocks, decided: Bool, settled: Bool) -> Blocks:
    """As `after_round` for a block that slides: what was due joins the cache, the decided run at the front falls due.

    `decided` [positions] of a branch; of these `settled` [positions] in all branches, which agree on what is due.
    """
    end = blocks[-1].end
    start = next((block.start for block in active(blocks)), end)
    undecided = np.flatnonzero(~settled[start:end])
    run = start + int(undecided[0]) if len(undecided) else end
    masks = int(np.count_nonzero(~decided[run:end]))
    parts = (
        Block(0, start, masks=0, state=BlockState.IN_CACHE, complete=True),
        Block(start, run, masks=0, state=BlockState.TO_CACHE, complete=True),
        Block(run, end, masks=masks, state=BlockState.ACTIVE, complete=True),
    )
    return tuple(block for block in parts if block.end > block.start)
