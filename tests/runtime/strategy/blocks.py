"""Block views for tests of the stages."""

from typing import Any

import numpy as np

from lopa.runtime.contract import Bool, Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import STRATEGIES, BlockView, Candidates, Memory, RoundView
from lopa.runtime.strategy.strategy import unmasked_positions


def view_of(
    positions: Int64, candidates: Candidates, masked: Bool | None = None, *, fully_activated: bool = True, **others: Any
) -> BlockView:
    """Return a block of a round with one branch. By default all positions are masked and the block is complete."""
    given = {"rounds": 0, "leads": False, "memory": None, "branch": 0, **others}
    alone = RoundView((positions,), (candidates,), winner=0)
    every = np.ones(len(positions), np.bool_) if masked is None else masked
    return BlockView(positions, candidates, every, fully_activated, **{"round": alone, **given})


def unmasked_of(block: BlockView, params: DecodingParams) -> list[int]:
    """Return the indices of the positions that the parameters's strategy unmasks."""
    return np.flatnonzero(unmasked_positions(block, STRATEGIES[params.strategy], params)).tolist()


def random_block(
    rng: np.random.Generator, *, fully_activated: bool = True, memory: Memory | None = None, size: int | None = None
) -> BlockView:
    """Return a block of up to 12 positions, some unmasked, with ties and with probabilities around every usual
    threshold."""
    size = int(rng.integers(1, 13)) if size is None else size
    p = rng.choice(np.array([0.2, 0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0], np.float32), size)
    entropies = rng.choice(np.array([0.001, 0.05, 0.1, 0.2, 0.3, 1.5], np.float32), size)
    candidates = Candidates(np.arange(size), p, -entropies, entropies=entropies)
    positions = np.sort(rng.choice(2 * size, size, replace=False)) + 40
    return view_of(positions, candidates, rng.random(size) < 0.7, fully_activated=fully_activated, memory=memory)
