"""The arguments of a strategy's stages: views of a branch, a round, a block of one branch, and positions to remask.

They hold arrays, so that a stage depends on no branch, session or grammar.
"""

from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import Index


@dataclass(frozen=True)
class Candidates:
    """One candidate token for each sampled position. All arrays have the same shape, e.g. [B, Q]."""

    tokens: Int64
    probabilities: Float32
    confidences: Float32
    logprobs: Float32 | None = None
    """Log-probabilities of the tokens before top_k and top_p; None if not requested."""
    entropies: Float32 | None = None
    """Entropies in nats after top_k and top_p; None in candidates that no forward proposed."""

    def __getitem__(self, index: Index) -> "Candidates":
        logprobs = None if self.logprobs is None else self.logprobs[index]
        entropies = None if self.entropies is None else self.entropies[index]
        return Candidates(self.tokens[index], self.probabilities[index], self.confidences[index], logprobs, entropies)


@runtime_checkable
class Memory(Protocol):
    """State that a strategy keeps for a branch between steps: a frozen record, copied with the branch's tokens."""

    def before(self, end: int) -> Self:
        """Return this state without the positions from `end` on, which are dropped."""
        ...


@dataclass(frozen=True)
class BranchView:
    """The n masked positions of a branch that are judged or may get a lookahead token, ascending. n is at least 1."""

    positions: Int64
    """[n]: absolute positions."""
    candidates: Candidates
    """[n]: candidates of this round's forward."""
    blocks: tuple[tuple[int, int], ...]
    """Start and end of each active block of the branch, ascending."""
    lookahead: float | None
    """Confidence with which the branch's lookahead token was proposed; None for the anchor."""
    memory: Memory | None
    """Memory of the branch after the first stage of this round."""


@dataclass(frozen=True)
class RoundView:
    """Candidates that a round's forward proposed for all branches, the anchor last."""

    positions: tuple[Int64, ...]
    """Sampled masked positions of each branch, ascending."""
    candidates: tuple[Candidates, ...]
    """Candidates of each branch at its `positions`."""
    winner: int
    """Index of the winning branch."""


@dataclass(frozen=True)
class BlockView:
    """The n sampled positions of an active block that may be unmasked now, ascending."""

    positions: Int64
    """[n]: absolute positions."""
    candidates: Candidates
    """[n]: candidates of this step. A grammar allows the one at the answer's first masked position."""
    masked: Bool
    """[n]: True for masked positions whose candidate no grammar rejects."""
    fully_activated: bool
    """True if the block before is nearly unmasked, so that this block unmasks at least one position per step."""
    rounds: int
    """Earlier rounds in which the block was active."""
    leads: bool
    """True if the answer's first masked position is in this block."""
    memory: Memory | None
    """Memory of the branch after the first stage of this step."""
    round: RoundView
    branch: int
    """Index of the block's branch in the round."""


@dataclass(frozen=True)
class RemaskView:
    """The n unmasked positions of an active block that this step verified again, ascending."""

    probabilities: Floats
    """[n]: probabilities of their tokens, from shadow rows, which do not attend to these tokens."""
    accepted: int
    """Number of positions that the block unmasked in this step, without positions behind an end of text. The n
    positions exclude them."""
    before: int
    """Number of positions that the block unmasked in the step before."""
    limit: int
    """Maximum number of positions that the answer may still remask."""


@dataclass(frozen=True)
class EditView:
    """The n unmasked positions of an active block that this step may edit, ascending. The prompt is not among them."""

    tokens: Int64
    """[n]: current tokens."""
    candidates: Candidates
    """[n]: tokens that the positions' own rows propose instead."""


def match_positions(known: Int64, positions: Int64) -> tuple[Bool, Int64]:
    """Return which of `positions` [n] are among `known` [m], both ascending, and their indices there, [n].

    The index of a position that is not there is 0.
    """
    places = np.minimum(np.searchsorted(known, positions), max(len(known) - 1, 0))
    found: Bool = known[places] == positions if len(known) else np.zeros(len(positions), np.bool_)
    return found, np.where(found, places, 0)
