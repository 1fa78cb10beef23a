"""Random blocks of candidates, and which of their positions a strategy decides."""

from typing import Any

import numpy as np

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.memory import Memory
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.open_block import OpenBlock
from lopa.runtime.strategy.places import chosen_places
from lopa.runtime.strategy.settings import rule_from_config


def random_block(
    rng: np.random.Generator, *, complete: bool = True, memory: Memory | None = None, size: int | None = None
) -> OpenBlock:
    """Up to 12 positions, some decided, with ties and with probabilities on either side of every usual threshold."""
    size = int(rng.integers(1, 13)) if size is None else size
    p = rng.choice(np.float32([0.2, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0]), size)
    entropies = rng.choice(np.float32([0.001, 0.05, 0.1, 0.2, 0.3, 1.5]), size)
    candidates = Candidates(np.arange(size), p, -entropies, entropies=entropies)
    positions = np.sort(rng.choice(2 * size, size, replace=False)) + 40
    return OpenBlock(positions, candidates, rng.random(size) < 0.7, complete, 0, memory)


def decided(block: OpenBlock, **options: Any) -> list[int]:
    """Indices of the positions that a step decides."""
    config = GenerationConfig(**options)
    return np.flatnonzero(chosen_places(block, rule_from_config(config), config)).tolist()
