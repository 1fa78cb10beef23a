"""From the branches of one step to the windows of one forward (docs/lopa.md, section 2).

Pure; knows the contract's arrays, no device.
"""

from dataclasses import dataclass

import numpy as np

from lopa.runtime.algorithm.blocks import active, to_cache
from lopa.runtime.algorithm.branches import Branch
from lopa.runtime.contract import Bool, Int64
from lopa.runtime.generation_config import GenerationConfig


@dataclass(frozen=True)
class Windows:
    """The windows of one request's branches: all start where its prefix cache ends and run to their branch's end.

    `kept` columns of the wanted rows come before those of `undecided`: when rows are committed and a row predicts the
    next position, column 0 is the last committed row, which alone predicts the first position behind it in all rounds
    until the next commit.
    """

    start: int
    """First position of every window."""
    commit: int
    """Rows from `start` that the winner commits (0: none)."""
    input_ids: Int64
    """[B, W]"""
    positions: Int64
    """[B, W]: the absolute position of every row."""
    mask: Bool
    """[B, W, W]"""
    lengths: tuple[int, ...]
    """Window rows of each branch, padding not counted."""
    undecided: tuple[Int64, ...]
    """Per branch the undecided positions, ascending."""
    wanted: Int64
    """[B, Q]: absolute positions whose candidates are wanted: `kept` columns, then `undecided`, then padding."""
    logits_index: Int64
    """[B, Q]: the window rows that predict them."""
    kept: int
    """Columns before those of `undecided`: 0 or 1."""


def windows_from_branches(
    branches: tuple[Branch, ...], config: GenerationConfig, *, prediction_shift: int, pad_token: int
) -> Windows:
    """Windows of prepared branches. The anchor, last of them, says what is to be cached: all branches agree on it."""
    anchor = branches[-1].blocks
    due = to_cache(anchor)
    start = (due or active(anchor))[0].start
    commit = due[-1].end - start if due else 0
    lengths = tuple(len(branch.tokens) - start for branch in branches)
    width = max(lengths)

    input_ids = np.full((len(branches), width), pad_token, np.int64)
    mask = np.zeros((len(branches), width, width), np.bool_)
    seen = _seen(branches, start, width, config)
    for row, (branch, length) in enumerate(zip(branches, lengths, strict=True)):
        input_ids[row, :length] = branch.tokens[start:]
        mask[row, :length, :length] = seen[:length, :length]
        padding = np.arange(length, width)
        mask[row, padding, padding] = True

    undecided = tuple(np.flatnonzero(~branch.decided) for branch in branches)
    kept = 1 if commit and prediction_shift else 0
    # Padding asks for the window's first predictable position; a forward is never asked for zero rows.
    wanted = np.full((len(branches), max(1, kept + max(map(len, undecided)))), start + prediction_shift, np.int64)
    wanted[:, :kept] = start + commit
    for row, positions in enumerate(undecided):
        wanted[row, kept : kept + len(positions)] = positions
    # No row of the window predicts its first position when nothing is committed: the kept row of an earlier round does.
    logits_index = np.maximum(wanted - prediction_shift - start, 0)
    positions = np.broadcast_to(start + np.arange(width), input_ids.shape)
    return Windows(start, commit, input_ids, positions, mask, lengths, undecided, wanted, logits_index, kept)


def _seen(branches: tuple[Branch, ...], start: int, width: int, config: GenerationConfig) -> Bool:
    """[W, W]: which row sees which, for the longest branch; the others' blocks are the first of it."""
    if config.window == "full":
        return np.ones((width, width), np.bool_)
    longest = max((branch.blocks for branch in branches), key=len)
    block_of_row = np.zeros(width, np.int64)
    for number, block in enumerate(longest):
        block_of_row[max(block.start - start, 0) : max(block.end - start, 0)] = number
    return block_of_row[:, None] >= block_of_row[None, :]
