"""How far what is said of a position moved from step to step: KLASS's history (arXiv 2511.05664). Pure."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.strategy.views import match_positions

STEPS = 2
"""So many steps in a row have to move little."""
_MIN_REST = 1e-8
"""Probability of everything else, below which float32 has no digits left."""


@dataclass(frozen=True, slots=True)
class Divergences:
    """Of m positions that a step asked about."""

    positions: Int64
    """[m], ascending."""
    ids: Int64
    """[m, K], of the last step."""
    logprobs: Float32
    """[m, K]"""
    moved: Floats
    """[m, STEPS]: nats of the last steps, the newest last; infinite where there was no step before."""

    def before(self, end: int) -> Self:
        """As a Memory: of positions before `end`."""
        kept = self.positions < end
        return type(self)(self.positions[kept], self.ids[kept], self.logprobs[kept], self.moved[kept])

    def settled(self, positions: Int64, max: float) -> Bool:
        """[n]: which of `positions`, all known, moved by less than `most` in each of the last steps."""
        _, places = match_positions(self.positions, positions)
        little: Bool = self.moved[places] < max
        return np.asarray(little.all(axis=-1))


def divergences_after(last: Divergences | None, rows: RowStatistics, positions: Int64) -> Divergences:
    """What to remember after a step that said `rows` [n] of `positions` [n]."""
    moved = np.full((len(positions), STEPS), np.inf)
    if last is not None:
        found, places = match_positions(last.positions, positions)
        places = places[found]
        now = divergence(rows.topk_ids[found], rows.topk_logprobs[found], last.ids[places], last.logprobs[places])
        moved[found] = np.column_stack([last.moved[places, 1:], now])
    return Divergences(positions, rows.topk_ids, rows.topk_logprobs, moved)


def divergence(ids: Int64, logprobs: Float32, last_ids: Int64, last_logprobs: Float32) -> Floats:
    """[n]: Kullback-Leibler divergence in nats of rows [n, K] from those of the step before [n, K].

    Tokens that are among the K best of both count by themselves, all others as one: at most the whole divergence.
    """
    same = ids[:, :, None] == last_ids[:, None, :]
    p = np.where(same.any(axis=2), np.exp(logprobs.astype(np.float64)), 0.0)
    q = (same * np.exp(last_logprobs.astype(np.float64))[:, None, :]).sum(axis=2)
    both = (p > 0) & (q > 0)
    # Logarithms apart: a quotient by the least of probabilities would be infinite.
    of_tokens = (p * (np.log(np.where(both, p, 1.0)) - np.log(np.where(both, q, 1.0)))).sum(axis=1, where=both)
    rest, last_rest = (np.maximum(1.0 - np.where(both, each, 0.0).sum(axis=1), _MIN_REST) for each in (p, q))
    result: Floats = of_tokens + rest * np.log(rest / last_rest)
    return result
