"""What a step may decide in one active block. Pure; knows arrays only."""

from dataclasses import dataclass

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.memory import Memory
from lopa.runtime.strategy.candidates import Candidates


@dataclass(frozen=True)
class OpenBlock:
    """The n positions of an active block that were asked about and are open now, ascending."""

    positions: Int64
    """[n], absolute."""
    candidates: Candidates
    """[n], of this step."""
    open: Bool
    """[n]: what may be decided. Undecided, and nothing that the request brings with it refuses the candidate."""
    complete: bool
    """Whether the block before is decoded, so that this one always decides something."""
    rounds: int
    """In which it was active before."""
    memory: Memory | None = None
    """What the strategy keeps of the branch, as its first stage left it in this step."""
    leads: bool = False
    """Whether the first undecided position of the answer is in it."""

    def frontier(self, config: GenerationConfig) -> Bool:
        """[n]: the answer's first undecided position, where every step decides it; else none."""
        first = np.zeros(len(self.positions), np.bool_)
        if config.decides_frontier and self.leads:
            first[np.flatnonzero(self.open)[:1]] = True
        return first

    def certainties(self, config: GenerationConfig) -> Float32:
        """[n]: what is held against the threshold: probabilities; of sliding blocks minus the scores."""
        return self.candidates.confidences if config.slides else self.candidates.probabilities
