"""Stage 5: which decided positions of a block a step undecides again. Pure; knows arrays only."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lopa.runtime.contract import Bool, Floats
from lopa.runtime.generation_config import GenerationConfig

BEFORE_FIRST_STEP = 30
"""How many positions a block is taken to have decided before its first step (WINO)."""


@dataclass(frozen=True)
class JudgedBlock:
    """The n decided positions of an active block that were judged in this step, ascending."""

    probabilities: Floats
    """[n]: how probable their tokens are to rows that do not see them."""
    accepted: int
    """Positions that the block decided in this step, not counting what an end-of-text cut off; none is among the n."""
    before: int
    """The same of the step before it."""
    most: int
    """How many the answer may still take back."""


TakeBack = Callable[[JudgedBlock, GenerationConfig], Bool]
"""[n]: which of a block's judged positions to take back."""


def doubted(block: JudgedBlock, config: GenerationConfig) -> Bool:
    """The least probable of those below the threshold, fewer than the step before decided, of equal ones the first;
    none in a step that decided no more than one (WINO).

    So every two steps together decide more than they take back, and an answer comes to its end.
    """
    result = np.zeros(len(block.probabilities), np.bool_)
    threshold = config.doubt_threshold
    if threshold is not None and block.accepted > 1:
        below = np.flatnonzero(block.probabilities < threshold)
        most = min(block.most, room_for_doubt(block.before))
        result[below[np.argsort(block.probabilities[below], kind="stable")[:most]]] = True
    return result


def room_for_doubt(before: int) -> int:
    """How many a block may take back at most in the step behind one that decided so many."""
    return max(0, before - 1)
