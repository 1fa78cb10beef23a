"""Where the blocks of a sequence lie, and which of them a position belongs to. Pure; knows no tokens.

Models differ in where their blocks begin. Dream, LLaDA and D2F count them from the end of the prompt, which is a block
of its own. SDAR, Fast-dLLM v2 and Stable-DiffCoder count them from position 0: the prompt is as many whole blocks, and
what is left of it lies decided inside the first block to generate. WeDLM has one block, which slides
(docs/concepts/decoding.md).
"""

from dataclasses import dataclass

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.plan import WHOLE_CACHES, DecodingPlan


@dataclass(frozen=True, slots=True)
class Layout:
    """Blocks of `size` positions from `first` to `end`, the last one possibly shorter; before them the prompt's."""

    prompt: int
    """Positions of the prompt."""
    first: int
    """Where the first block to generate begins: behind the prompt, or before its end."""
    size: int
    end: int
    """One behind the last position to generate."""
    absolute: bool = False
    """Whether the prompt consists of blocks too, counted from position 0."""
    hands_over: bool = False
    """Whether the last row of a finished block decides the next one's first token when it is committed, so that a block
    opens only behind the commit of the one before (Fast-dLLM v2)."""
    whole: bool = False
    """Whether all positions are in the sequence from the start."""
    slides: bool = False
    """Whether there is one block, which begins behind the decided run at the front, wherever that ends."""
    unseen: int = 0
    """Positions at the start that no row stands for: Fast-dLLM v2's code does not see a prompt of exactly one block."""
    prediction_shift: int = 0
    """1: a row predicts the next position; 0: its own."""

    def end_of_block(self, start: int) -> int:
        """One behind the last position of the block that begins at `start`; `start` itself where none may begin."""
        return max(start, min(start + self.size, self.end))

    def numbers(self, positions: Int64) -> Int64:
        """The block of each of `positions`, counted from 0; rising with them."""
        if self.absolute:
            return positions // self.size
        return np.where(positions < self.first, 0, 1 + (positions - self.first) // self.size)


def max_rows(prompt: int, plan: DecodingPlan) -> tuple[int, int]:
    """Rows that the largest window of a decode can have, and positions that it can ask about, one kept row not counted.

    The first window is the prompt and a block, or all of the answer; later ones hold generated positions, and what is
    left of the prompt in the first block. Where decided positions are taken back, each may have a shadow row.
    """
    generated = plan.positions
    first = prompt + (generated if plan.cache in WHOLE_CACHES else min(plan.block_size, generated))
    if plan.slides:
        # A block, and before it at most another that is committed.
        return max(first, min(2 * plan.block_size, generated)), min(plan.block_size, generated)
    asked = generated + (plan.block_size if plan.alignment == "absolute" else 0)
    if plan.remasks and plan.cache in WHOLE_CACHES:
        return first + min(plan.block_size, generated), asked
    return max(first, 2 * asked if plan.remasks else asked), asked


def layout_of_prompt(prompt: int, plan: DecodingPlan, prediction_shift: int = 1) -> Layout:
    """The layout of an answer to a prompt of so many positions, in whole blocks alone where the published loops do so.

    `prediction_shift` 1: a row predicts the next position.
    """
    size, whole = plan.block_size, plan.cache in WHOLE_CACHES
    if plan.alignment != "absolute":
        return Layout(
            prompt,
            prompt,
            size,
            prompt + plan.positions,
            whole=whole,
            slides=plan.slides,
            prediction_shift=prediction_shift,
        )
    first = prompt // size * size
    hands_over = prediction_shift == 1
    end = prompt + plan.max_new_tokens
    if plan.reference:
        # Fast-dLLM v2 counts the blocks that it generates, the prompt's last one too, and then keeps the token that the
        # last commit handed over. SDAR goes on to the end of a block.
        end = first + plan.positions + 1 if hands_over else -(-end // size) * size
    unseen = prompt if plan.reference and hands_over and prompt == size else 0
    return Layout(
        prompt,
        first,
        size,
        end,
        absolute=True,
        hands_over=hands_over,
        whole=whole,
        unseen=unseen,
        prediction_shift=prediction_shift,
    )
