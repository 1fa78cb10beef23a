"""The order in which a block's positions are taken, where not all are. Pure."""

from collections.abc import Callable

import numpy as np

from lopa.runtime.contract import Floats
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.history.schedule import ScheduleStep, noise_of_step
from lopa.runtime.strategy.open_block import OpenBlock

Rank = Callable[[OpenBlock, GenerationConfig], Floats]
"""[n] of a block's n positions: the largest is the first, of equal ones the lowest position."""


def by_confidence(block: OpenBlock, config: GenerationConfig) -> Floats:  # noqa: ARG001
    """The most confident first."""
    return np.asarray(block.candidates.confidences, np.float64)


def by_probability(block: OpenBlock, config: GenerationConfig) -> Floats:  # noqa: ARG001
    """The most probable candidate first."""
    return np.asarray(block.candidates.probabilities, np.float64)


def by_drawn_confidence(block: OpenBlock, config: GenerationConfig) -> Floats:
    """The most confident first; with alg_temp they are drawn, by the softmax of confidences over it (Dream)."""
    if not config.alg_temp:
        return by_confidence(block, config)
    assert isinstance(block.memory, ScheduleStep)
    return by_confidence(block, config) / config.alg_temp + noise_of_step(block.memory, block.positions, config)


def left_to_right(block: OpenBlock, config: GenerationConfig) -> Floats:  # noqa: ARG001
    """The first position first."""
    return -np.arange(len(block.positions), dtype=np.float64)
