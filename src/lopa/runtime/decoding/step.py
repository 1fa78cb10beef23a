"""Record of one decoding step, and the flat table of several, with a row for each sampled position of each branch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lopa.runtime.contract import Bool, ForwardSplit, Int64
from lopa.runtime.contract.records import record
from lopa.runtime.decoding.round import EditedTokens, UnmaskedTokens
from lopa.runtime.state.branch import Branch, Lookahead
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import Candidates


@record
class CanvasStep:
    """Record of a step of a canvas of C positions."""

    drawn: Int64
    """[C]: tokens drawn at the step's temperature."""
    accepted: Bool
    """[C]: True for positions that keep their drawn token until the next step."""
    best: Int64
    """[C]: most probable tokens, which are the answer if the canvas ends with this step."""
    renoised: Int64
    """[C]: accepted tokens, and new random ones elsewhere."""
    mean_entropy: float
    """Nats."""


@record
class Step:
    """Record of one decoding step. `step_table` makes a flat table of several."""

    number: int
    """Number of the step, 1 for the first."""
    branches: tuple[Branch, ...]
    """Verified branches, the anchor last."""
    rows: PackedRows
    """Rows of the forward, and the columns that the step read."""
    confidences: tuple[float, ...]
    winner: int
    unmasked: UnmaskedTokens
    lookaheads: tuple[Lookahead, ...]
    """Lookahead tokens of the next step."""
    seconds: dict[str, float]
    """Seconds per phase."""
    split: ForwardSplit | None = None
    """Seconds of the forward by device; None with a single device."""
    remasked: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Positions that the step remasked."""
    candidates: tuple[Candidates, ...] = ()
    """Candidates of each branch at its sampled positions (`rows.sampled`)."""
    unmasked_branches: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """[unmasked tokens]: branch whose statistics each token comes from; with `speculative` a step may use several."""
    last: Lookahead | None = None
    """Lookahead token that completed the answer, which no later step verifies; None in other steps."""
    edited: EditedTokens = field(default_factory=EditedTokens)
    """Unmasked tokens that the step replaced."""
    places: Mapping[int, int] | None = None
    """New position of every position that is still there, if holes changed their lengths; otherwise None."""
    canvas: CanvasStep | None = None
    """Record of the canvas; None for models with masks."""


_TYPES: dict[str, type[np.generic]] = {
    "step": np.int64,
    "position": np.int64,
    "token": np.int64,
    "probability": np.float32,
    "entropy": np.float32,
    "unmasked": np.bool_,
    "branch": np.int64,
}
_Row = tuple[int, int, int, float, float, bool, int]


def step_table(steps: Step | Iterable[Step]) -> dict[str, NDArray[Any]]:
    """Return the columns of a flat table of `steps`, arrays of equal length, e.g. for `pandas.DataFrame`.

    A row holds the token that a step's forward proposed for one masked position of one branch:

    * step: number of the step, 1 for the first.
    * position: index in the sequence, 0 for the first token of the prompt.
    * token: id of the proposed token, or of the written one if a grammar replaced it.
    * probability: probability of the token after temperature, top_k and top_p.
    * entropy: entropy in nats of the distribution behind the confidence.
    * unmasked: True if the step wrote the token; False for branches that lost.
    * branch: number of the branch; the anchor has the highest number of its step.

    The step that accepts a lookahead token has a row for it, with the probability and entropy of the step that proposed
    it. A lookahead token that completes the answer is accepted by the step that proposed it. Tokens that a grammar
    forces have no row. Rows are ordered by step, branch and position.
    """
    rows = [row for step in ([steps] if isinstance(steps, Step) else steps) for row in _rows(step)]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_TYPES)
    return {name: np.array(column, kind) for (name, kind), column in zip(_TYPES.items(), columns, strict=True)}


def _rows(step: Step) -> Iterator[_Row]:
    """Yield the rows of one step."""
    unmasked = step.unmasked
    unknown = np.full(len(unmasked), np.nan, np.float32)
    probabilities = unknown if unmasked.probabilities is None else unmasked.probabilities
    entropies = unknown if unmasked.entropies is None else unmasked.entropies
    for branch, (sampled, candidates) in enumerate(zip(step.rows.sampled, step.candidates, strict=True)):
        found: dict[int, _Row] = {}
        proposed_entropies = (
            np.full(len(sampled), np.nan, np.float32) if candidates.entropies is None else candidates.entropies
        )
        for position, token, probability, entropy in zip(
            sampled.tolist(),
            candidates.tokens.tolist(),
            candidates.probabilities.tolist(),
            proposed_entropies.tolist(),
            strict=True,
        ):
            found[position] = (step.number, position, token, probability, entropy, False, branch)
        for place in np.flatnonzero(step.unmasked_branches == branch):
            position, token = int(unmasked.positions[place]), int(unmasked.tokens[place])
            found[position] = (
                step.number,
                position,
                token,
                float(probabilities[place]),
                float(entropies[place]),
                True,
                branch,
            )
        for look in (step.branches[step.winner].lookahead, step.last):
            if look is not None and branch == step.winner:
                at = look.position
                found[at] = (step.number, at, look.token, look.probability, look.entropy, True, branch)
        yield from (found[position] for position in sorted(found))
