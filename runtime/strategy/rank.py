"""The order in which a block's positions are taken, where not all are. Pure."""

from collections.abc import Callable

import numpy as np

from lopa.runtime.contract import Floats
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy.open_block import OpenBlock

Rank = Callable[[OpenBlock, GenerationConfig], Floats]
"""[n] of a block's n positions: the largest is the first, of equal ones the lowest position."""


def by_confidence(block: OpenBlock, config: GenerationConfig) -> Floats:  # noqa: ARG001
    """The most confident first."""
    return np.asarray(block.candidates.confidences, np.float64)


def left_to_right(block: OpenBlock, config: GenerationConfig) -> Floats:  # noqa: ARG001
    """The first position first."""
    return -np.arange(len(block.positions), dtype=np.float64)
