"""Which positions of a branch may be decided in a round, and about which the model is asked. Pure; knows no device."""

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.blocks import Block, active
from lopa.runtime.sequence.branches import Branch


def open_span(branch: Branch, block: Block, config: GenerationConfig) -> tuple[int, int]:
    """First and one behind the last position of an active block that may be decided now.

    All of it; with sub-blocks, which are decided one after the other, the first that has an undecided position (the
    last one where none has).
    """
    if config.sub_block is None:
        return block.start, block.end
    undecided = np.flatnonzero(~branch.decided[block.start : block.end])
    inside = int(undecided[0]) if len(undecided) else block.end - block.start - 1
    start = block.start + inside // config.sub_block * config.sub_block
    return start, min(start + config.sub_block, block.end)


def open_positions(branch: Branch, config: GenerationConfig) -> Bool:
    """[positions]: undecided ones that may be decided now."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in active(branch.blocks):
        found[slice(*open_span(branch, block, config))] = True
    return found & ~branch.decided


def open_among(branch: Branch, positions: Int64, config: GenerationConfig) -> Bool:
    """[n]: which of `positions` [n], ascending, are undecided ones that may be decided now; none behind the branch."""
    return _flagged(open_positions(branch, config), positions)


def undecided_among(branch: Branch, positions: Int64) -> Bool:
    """[n]: which of `positions` [n], ascending, are undecided; none behind the branch."""
    return _flagged(~branch.decided, positions)


def _flagged(flags: Bool, positions: Int64) -> Bool:
    result = np.zeros(len(positions), np.bool_)
    inside = np.searchsorted(positions, len(flags))
    result[:inside] = flags[positions[:inside]]
    return result


def asked_positions(branch: Branch, config: GenerationConfig) -> Int64:
    """Positions whose candidates a round wants, ascending: the undecided ones of all blocks that were opened.

    The published rules that fill so many a step also ask about decided ones (docs/models.md, "Published quirks").
    """
    end = branch.blocks[-1].end
    if config.overwrites_decided:
        spans = [np.arange(block.start, block.end) for block in active(branch.blocks)]
        return np.concatenate([np.empty(0, np.int64), *spans])
    return np.flatnonzero(~branch.decided[:end])
