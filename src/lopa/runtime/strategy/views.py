"""What the stages of a strategy are given: a round, a block of one of its branches, positions to remask.

Arrays only: a stage knows no branch, session or grammar.
"""

from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import Index


@dataclass(frozen=True)
class Candidates:
    """One candidate token for each sampled position; all arrays of one shape, e.g. [B, Q]."""

    tokens: Int64
    probabilities: Float32
    confidences: Float32
    logprobs: Float32 | None = None
    """Log-probabilities of the tokens as the model gave them, before top_k and top_p; None where not requested."""
    entropies: Float32 | None = None
    """In nats, of the whole distribution or of what top_k and top_p kept; None in candidates that no forward made."""

    def __getitem__(self, index: Index) -> "Candidates":
        logprobs = None if self.logprobs is None else self.logprobs[index]
        entropies = None if self.entropies is None else self.entropies[index]
        return Candidates(self.tokens[index], self.probabilities[index], self.confidences[index], logprobs, entropies)


class Memory(Protocol):
    """What a strategy remembers of a branch from step to step: a frozen record, copied with the branch's tokens."""

    def before(self, end: int) -> Self:
        """Return what is left of it when the positions from `end` on go."""
        ...


@dataclass(frozen=True)
class RoundView:
    """What the forward of a round proposed for all of its branches, the anchor last."""

    positions: tuple[Int64, ...]
    """The masked positions that each branch asked about, ascending."""
    candidates: tuple[Candidates, ...]
    """Their candidates."""
    winner: int
    """Index of the branch with which the request goes on."""


@dataclass(frozen=True)
class BlockView:
    """The n positions of an active block that were asked about and may be unmasked now, ascending."""

    positions: Int64
    """[n], absolute."""
    candidates: Candidates
    """[n], of this step. With a grammar the first masked position's candidate is one that the grammar allows."""
    masked: Bool
    """[n]: positions that may be unmasked: masked, and no grammar refuses the candidate."""
    complete: bool
    """Whether the block before is nearly unmasked, so that this one unmasks some position in every step."""
    rounds: int
    """Rounds in which the block was active before."""
    leads: bool
    """Whether the answer's first masked position is in this block."""
    memory: Memory | None
    """What the strategy remembers of the branch, as its first stage left it in this step."""
    round: RoundView
    branch: int
    """Index in the round of the branch that the block belongs to."""


@dataclass(frozen=True)
class RemaskView:
    """The n unmasked positions of an active block that were judged in this step, ascending."""

    probabilities: Floats
    """[n]: probabilities of their tokens according to rows that do not see them."""
    accepted: int
    """Positions that the block unmasked in this step, without those that an end-of-text cut off; none is among the
    n."""
    before: int
    """The same number in the step before."""
    limit: int
    """How many positions the answer may still remask."""


def match_positions(known: Int64, wanted: Int64) -> tuple[Bool, Int64]:
    """Return which of the positions `wanted` [n] are among `known` [m], both ascending, and their places there, [n].

    The place of a position that is not there is 0.
    """
    places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    found: Bool = known[places] == wanted if len(known) else np.zeros(len(wanted), np.bool_)
    return found, np.where(found, places, 0)
