"""Stage 4: how many of a block's certain positions are decided, the first by rank; and how many at any rate. Pure."""

from collections.abc import Callable

from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy.open_block import OpenBlock

Cut = Callable[[Int64, OpenBlock, GenerationConfig], int]
"""Of the indices [m] of a block's certain positions, the first by rank first: how many of them."""
Least = Callable[[OpenBlock, GenerationConfig], int]
"""How many a complete block decides, certain or not."""


def all_of_them(ranked: Int64, block: OpenBlock, config: GenerationConfig) -> int:  # noqa: ARG001
    """No limit."""
    return len(ranked)


def share_of_step(block: OpenBlock, config: GenerationConfig) -> int:
    """One, or with `block_steps` the share of the step: a block is decided in so many steps of equal size, the first
    ones a position larger where they do not divide it (LLaDA, SDAR)."""
    if config.block_steps is None:
        return 1
    each, more = divmod(config.block_size, config.block_steps)
    return max(1, each + (block.rounds < more))
