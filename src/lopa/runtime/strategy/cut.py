"""Stage 4: how many of a block's certain positions are decided, the first by rank; and how many at any rate. Pure."""

from collections.abc import Callable

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.history.schedule import ScheduleStep, count_of_step
from lopa.runtime.strategy.open_block import OpenBlock

Cut = Callable[[Int64, OpenBlock, GenerationConfig], int]
"""Of the indices [m] of a block's certain positions, the first by rank first: how many of them."""
Least = Callable[[OpenBlock, GenerationConfig], int]
"""How many a complete block decides, certain or not."""


def all_of_them(ranked: Int64, block: OpenBlock, config: GenerationConfig) -> int:  # noqa: ARG001
    """No limit."""
    return len(ranked)


def within_entropy_bound(ranked: Int64, block: OpenBlock, config: GenerationConfig) -> int:
    """As many as have, beside the largest of their entropies, gamma nats together: what they may share, so that writing
    them at once is not far from writing them one by one (EB-sampler, arXiv 2505.24857).

    The bound is over the rank: a prefix has a sum and a maximum of its own, and neither falls with its length. No
    entropy of a model is 0 but by rounding, so a gamma of 0 is one position.
    """
    assert block.candidates.entropies is not None
    if config.entropy_bound == 0:
        return min(1, len(ranked))
    entropies = np.maximum(block.candidates.entropies[ranked].astype(np.float64), 0.0)
    shared = np.cumsum(entropies) - np.maximum.accumulate(entropies)
    return int(np.count_nonzero(shared <= config.entropy_bound))


def within_factor(ranked: Int64, block: OpenBlock, config: GenerationConfig) -> int:
    """The largest n with (n + 1) (1 - probability of the n-th) below the factor (Fast-dLLM)."""
    p = block.candidates.probabilities[ranked].astype(np.float64)
    counts = 1 + np.flatnonzero(np.arange(2, len(p) + 2) * (1.0 - p) < config.parallel_factor)
    return int(counts.max(initial=0))


def so_many(block: OpenBlock, config: GenerationConfig) -> int:  # noqa: ARG001
    """As many as the option says."""
    return config.positions_per_step


def share_of_schedule(block: OpenBlock, config: GenerationConfig) -> int:
    """As many as the step of Dream's schedule says; none where positions are drawn each by itself."""
    assert isinstance(block.memory, ScheduleStep)
    if config.algorithm == "origin":
        return 0
    return count_of_step(block.memory, int(np.count_nonzero(block.open)), config)


def seven_tenths(ranked: Int64, block: OpenBlock, config: GenerationConfig) -> int:  # noqa: ARG001
    """Seven tenths of what is undecided, rounded down, but 5 to 20 (WINO)."""
    return min(len(ranked), max(5, min(20, int(0.7 * np.count_nonzero(block.open)))))


def share_of_step(block: OpenBlock, config: GenerationConfig) -> int:
    """One, or with `block_steps` the share of the step: a block is decided in so many steps of equal size, the first
    ones a position larger where they do not divide it (LLaDA, SDAR)."""
    if config.block_steps is None:
        return 1
    each, more = divmod(config.block_size, config.block_steps)
    return max(1, each + (block.rounds < more))
