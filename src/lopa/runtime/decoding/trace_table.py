"""The steps of a decode as one flat table: a row for each position that a branch was asked about. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lopa.runtime.decoding.step import Step

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


def trace_table(steps: Step | Iterable[Step]) -> dict[str, NDArray[Any]]:
    """Return the columns of a flat table of `steps`, arrays of one length: `pandas.DataFrame` takes them as they are.

    A row says what a step's forward proposed for one masked position of one branch:

    - step: number of the step, 1 for the first
    - position: place in the sequence, 0 for the first token of the prompt
    - token: id of the proposed token, or of the one that was written, where a grammar made it another
    - probability: of that token, after temperature, top_k and top_p
    - entropy: in nats, of the distribution from which confidences are made
    - unmasked: whether the step wrote the token; of lookahead branches that lost nothing is
    - branch: number of the branch; the anchor has the highest of its step

    A lookahead token has such a row in the step that accepts it, with the probability and entropy of the step that
    proposed it; one that completes the answer is accepted by the step that proposed it. What a grammar forces without
    asking the model has no row. Rows are ordered by step, branch and position.
    """
    rows = [row for step in ([steps] if isinstance(steps, Step) else steps) for row in _rows(step)]
    columns = zip(*rows, strict=True) if rows else ((),) * len(_TYPES)
    return {name: np.array(column, kind) for (name, kind), column in zip(_TYPES.items(), columns, strict=True)}


def _rows(step: Step) -> Iterator[_Row]:
    """The rows of one step."""
    fills = step.fills
    unknown = np.full(len(fills), np.nan, np.float32)
    sure = unknown if fills.probabilities is None else fills.probabilities
    entropies = unknown if fills.entropies is None else fills.entropies
    for branch, (asked, said) in enumerate(zip(step.windows.asked, step.candidates, strict=True)):
        found: dict[int, _Row] = {}
        spread = np.full(len(asked), np.nan, np.float32) if said.entropies is None else said.entropies
        for position, token, probability, entropy in zip(
            asked.tolist(), said.tokens.tolist(), said.probabilities.tolist(), spread.tolist(), strict=True
        ):
            found[position] = (step.number, position, token, probability, entropy, False, branch)
        for place in np.flatnonzero(step.fill_branches == branch):
            position, token = int(fills.positions[place]), int(fills.tokens[place])
            found[position] = (step.number, position, token, float(sure[place]), float(entropies[place]), True, branch)
        for look in (step.branches[step.winner].lookahead, step.last):
            if look is not None and branch == step.winner:
                at = look.position
                found[at] = (step.number, at, look.token, look.probability, look.entropy, True, branch)
        yield from (found[position] for position in sorted(found))
