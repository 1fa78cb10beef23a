"""Positions of the blocks in a sequence.

Models differ in where blocks begin. Dream, LLaDA and D2F count them from the end of the prompt, which is a separate
block. SDAR, Fast-dLLM v2 and Stable-DiffCoder count from position 0. The prompt then fills whole blocks, and its
remainder begins the first generated block. WeDLM has a single sliding block (docs/concepts/decoding.md).
"""

from dataclasses import dataclass, replace

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.options import WHOLE_CACHES, DecodingParams


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of `size` positions from `first` to `end`, the last one possibly shorter, behind the prompt's blocks."""

    prompt: int
    """Number of prompt positions."""
    first: int
    """Start of the first block to generate: the end of the prompt, or a position before it."""
    size: int
    end: int
    """End of the positions to generate, exclusive."""
    absolute: bool = False
    """True if blocks are counted from position 0, through the prompt."""
    hands_over: bool = False
    """True if the last row of a finished block predicts the next block's first token when it is committed. The next
    block then opens only after that commit (Fast-dLLM v2)."""
    whole: bool = False
    """True if all positions are in the sequence from the start."""
    slides: bool = False
    """True for a single sliding block, which begins behind the leading unmasked positions."""
    unseen: int = 0
    """Leading positions without a row: Fast-dLLM v2's code skips a prompt of exactly one block."""
    prediction_shift: int = 0
    """1 if a row predicts the next position, 0 if its own."""
    holes: tuple[tuple[int, int], ...] = ()
    """Positions of the holes to fill, each from a start to an exclusive end; empty for an answer behind a prompt.
    `prompt` is then the start of the first hole, and given tokens are between and behind the holes."""
    in_turn: bool = False
    """True if the holes are filled from left to right instead of together."""

    def end_of_block(self, start: int) -> int:
        """Return the exclusive end of the block that begins at `start`, or `start` if no block may begin there.

        Holes are one block. If they are filled in turn, a block has at most `size` positions of one hole, and the given
        tokens before them.
        """
        if self.holes and not self.in_turn:
            return max(start, self.end)
        if self.holes:
            hole = next(((max(start, first), end) for first, end in self.holes if end > start), None)
            return start if hole is None else min(hole[0] + self.size, hole[1])
        return max(start, min(start + self.size, self.end))

    def block_numbers(self, positions: Int64) -> Int64:
        """Return the block number of each of `positions`, from 0, non-decreasing."""
        if self.absolute:
            return positions // self.size
        return np.maximum(0, 1 + (positions - self.first) // self.size)


def max_rows(prompt: int, params: DecodingParams) -> tuple[int, int]:
    """Return the maximum number of rows and of sampled positions that a window can have, not counting the kept row.

    The first window holds the prompt and a block, or the whole answer. Later windows hold generated positions and the
    prompt's remainder in the first block. With remasking, each unmasked position may have a shadow row.
    """
    generated = params.positions
    first = prompt + (generated if params.cache in WHOLE_CACHES else min(params.block_size, generated))
    if params.slides:
        # a block and at most one other before it, which is committed
        return max(first, min(2 * params.block_size, generated)), min(params.block_size, generated)
    sampled = generated + (params.block_size if params.alignment == "absolute" else 0)
    if params.remasks and params.cache in WHOLE_CACHES:
        return first + min(params.block_size, generated), sampled
    return max(first, 2 * sampled if params.remasks else sampled), sampled


def layout_of_prompt(prompt: int, params: DecodingParams, prediction_shift: int = 1) -> Layout:
    """Return the layout of an answer to a prompt of `prompt` positions.

    In reference mode the answer ends where the published loops end it. With `prediction_shift` 1 a row predicts the
    next position.
    """
    size = params.block_size
    layout = Layout(prompt, prompt, size, prompt + params.positions, prediction_shift=prediction_shift)
    layout = replace(layout, whole=params.cache in WHOLE_CACHES, slides=params.slides)
    if params.alignment != "absolute":
        return layout
    first = prompt // size * size
    hands_over = prediction_shift == 1
    end = prompt + params.max_new_tokens
    if params.reference:
        # Fast-dLLM v2 counts generated blocks, including the prompt's last one, and keeps the token that the last
        # commit predicts. SDAR continues to the end of a block.
        end = first + params.positions + 1 if hands_over else -(-end // size) * size
    unseen = prompt if params.reference and hands_over and prompt == size else 0
    return replace(layout, first=first, end=end, absolute=True, hands_over=hands_over, unseen=unseen)


def layout_of_holes(
    holes: tuple[tuple[int, int], ...], params: DecodingParams, prediction_shift: int, *, in_turn: bool
) -> Layout:
    """Return the layout of a text whose `holes` are filled, together or `in_turn` (lopa.runtime.text.encoded_holes)."""
    first, end = holes[0][0], holes[-1][1]
    return Layout(
        first,
        first,
        params.block_size,
        end,
        whole=True,
        prediction_shift=prediction_shift,
        holes=holes,
        in_turn=in_turn,
    )
