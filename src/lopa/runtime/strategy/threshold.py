"""Stage 3: what the certainty of each position of a block has to exceed, strictly, to be decided at once. Pure."""

import math
from collections.abc import Callable

import numpy as np

from lopa.runtime.contract import Float32
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.history.schedule import ScheduleStep, drawn_in_step
from lopa.runtime.strategy.open_block import OpenBlock

NEAR, LOWER = 4, 0.75
"""Published: positions to either side of an anchor, and the probability that is enough there."""
Threshold = Callable[[OpenBlock, GenerationConfig], Float32]
"""[n] of a block's n positions."""


def constant(block: OpenBlock, config: GenerationConfig) -> Float32:
    """The same for all: skip_threshold; of sliding blocks minus the limit of the scores."""
    return np.full(len(block.positions), -config.score_limit if config.slides else config.skip_threshold, np.float32)


def if_the_best_is_sure(block: OpenBlock, config: GenerationConfig) -> Float32:
    """Nothing to exceed, but in a block that waits for the one before: there all or nothing, by whether the highest
    probability exceeds skip_threshold."""
    best = block.candidates.probabilities[block.open].max(initial=0.0)
    free = block.complete or best > np.float32(config.skip_threshold)
    return np.full(len(block.positions), -math.inf if free else math.inf, np.float32)


def reached(block: OpenBlock, config: GenerationConfig) -> Float32:
    """As `constant`, of a rule that takes what is equal to it, too."""
    return _below(constant(block, config))


def lower_near_anchors(block: OpenBlock, config: GenerationConfig) -> Float32:
    """What `reached` asks, and less within NEAR positions of one that reaches it (LocalLeap, arXiv 2510.07081)."""
    usual = reached(block, config)
    anchors = block.positions[block.open & (block.certainties(config) > usual)]
    near = (np.abs(block.positions[:, None] - anchors) <= NEAR).any(axis=1)
    return np.where(near, np.minimum(usual, _below(np.float32(LOWER))), usual)


def by_schedule(block: OpenBlock, config: GenerationConfig) -> Float32:
    """Dream's: nothing is certain; where positions are drawn each by itself, those are."""
    if config.algorithm != "origin":
        return never(block, config)
    assert isinstance(block.memory, ScheduleStep)
    drawn = drawn_in_step(block.memory, block.positions, config)
    return np.where(drawn, np.float32(-math.inf), np.float32(math.inf))


def none(block: OpenBlock, config: GenerationConfig) -> Float32:  # noqa: ARG001
    """Everything is certain enough: the cut alone decides."""
    return np.full(len(block.positions), -math.inf, np.float32)


def _below(limit: Float32 | np.float32) -> Float32:
    """The next number below, which is exceeded by what reaches `limit`."""
    return np.nextafter(limit, np.float32(-math.inf), dtype=np.float32)


def never(block: OpenBlock, config: GenerationConfig) -> Float32:  # noqa: ARG001
    """Nothing is certain enough."""
    return np.full(len(block.positions), math.inf, np.float32)
