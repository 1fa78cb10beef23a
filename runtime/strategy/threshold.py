"""Stage 3: what the certainty of each position of a block has to exceed, strictly, to be decided at once. Pure."""

import math
from collections.abc import Callable

import numpy as np

from lopa.runtime.contract import Float32
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.strategy.open_block import OpenBlock

Threshold = Callable[[OpenBlock, GenerationConfig], Float32]
"""[n] of a block's n positions."""


def constant(block: OpenBlock, config: GenerationConfig) -> Float32:
    """The same for all: skip_threshold; of sliding blocks minus the limit of the scores."""
    return np.full(len(block.positions), -config.score_limit if config.slides else config.skip_threshold, np.float32)


def never(block: OpenBlock, config: GenerationConfig) -> Float32:  # noqa: ARG001
    """Nothing is certain enough."""
    return np.full(len(block.positions), math.inf, np.float32)
