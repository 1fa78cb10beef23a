"""The positions that a round samples or may edit, and which of them may be unmasked."""

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.branch import Block, Branch


def open_span(branch: Branch, block: Block, params: DecodingParams) -> tuple[int, int]:
    """Return the start and end of the positions of an active block that may be unmasked now.

    That is the whole block. With sub-blocks, which are unmasked one after another, it is the first one with a masked
    position, or the last one if none has.
    """
    if params.sub_block >= block.end - block.start:
        return block.start, block.end
    masked = np.flatnonzero(~branch.unmasked[block.start : block.end])
    inside = int(masked[0]) if len(masked) else block.end - block.start - 1
    start = block.start + inside // params.sub_block * params.sub_block
    return start, min(start + params.sub_block, block.end)


def open_among(branch: Branch, positions: Int64, params: DecodingParams) -> Bool:
    """Return which of `positions` [n], ascending, are masked and may be unmasked now, [n]. Positions behind the branch
    are False."""
    found = np.zeros(len(branch.tokens), np.bool_)
    for block in branch.active:
        found[slice(*open_span(branch, block, params))] = True
    return _flags_at(found & ~branch.unmasked, positions)


def masked_among(branch: Branch, positions: Int64) -> Bool:
    """Return which of `positions` [n], ascending, are masked, [n]. Positions behind the branch are False."""
    return _flags_at(~branch.unmasked, positions)


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


def _flags_at(flags: Bool, positions: Int64) -> Bool:
    result = np.zeros(len(positions), np.bool_)
    inside = np.searchsorted(positions, len(flags))
    result[:inside] = flags[positions[:inside]]
    return result
