"""KL divergence between each position's distributions in consecutive steps: KLASS (arXiv 2511.05664)."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.strategy.strategy import match_positions

STEPS = 2
"""Consecutive steps with a small divergence that make a position stable."""
_MIN_REST = 1e-8
"""Lower bound of the total probability of all other tokens. Smaller totals are rounding errors of float32."""


@dataclass(frozen=True, slots=True)
class Divergences:
    """History of the m positions that a step sampled."""

    positions: Int64
    """[m]: sampled positions, ascending."""
    ids: Int64
    """[m, K]: candidates of the last step."""
    logprobs: Float32
    """[m, K]: log-probabilities of these candidates."""
    moved: Floats
    """[m, STEPS]: divergences of the last steps in nats, the newest last. They are infinite for steps without an
    earlier step to compare.
    """

    def before(self, end: int) -> Self:
        """Return the history of the positions before `end` (see Memory)."""
        kept = self.positions < end
        return type(self)(self.positions[kept], self.ids[kept], self.logprobs[kept], self.moved[kept])

    def are_stable(self, positions: Int64, max_divergence: float) -> Bool:
        """Return which of `positions` [n], all in this history, diverged by less than `max_divergence` in each of the
        last steps."""
        _, places = match_positions(self.positions, positions)
        small: Bool = self.moved[places] < max_divergence
        return np.asarray(small.all(axis=-1))


def divergences_after(last: Divergences | None, rows: RowStatistics, positions: Int64) -> Divergences:
    """Return the history after a step with statistics `rows` [n] at `positions` [n]."""
    moved = np.full((len(positions), STEPS), np.inf)
    if last is not None:
        found, places = match_positions(last.positions, positions)
        places = places[found]
        now = divergence(rows.topk_ids[found], rows.topk_logprobs[found], last.ids[places], last.logprobs[places])
        moved[found] = np.column_stack([last.moved[places, 1:], now])
    return Divergences(positions, rows.topk_ids, rows.topk_logprobs, moved)


def divergence(ids: Int64, logprobs: Float32, last_ids: Int64, last_logprobs: Float32) -> Floats:
    """Return the Kullback-Leibler divergence in nats, [n], of rows [n, K] from the rows [n, K] of the step before.

    Tokens that are among the K best in both steps count separately. All other tokens count as a single one. The result
    never exceeds the divergence of the whole distributions.
    """
    same = ids[:, :, None] == last_ids[:, None, :]
    p = np.where(same.any(axis=2), np.exp(logprobs.astype(np.float64)), 0.0)
    q = (same * np.exp(last_logprobs.astype(np.float64))[:, None, :]).sum(axis=2)
    both = (p > 0) & (q > 0)
    # Two logarithms, since a quotient by a tiny probability overflows.
    of_tokens = (p * (np.log(np.where(both, p, 1.0)) - np.log(np.where(both, q, 1.0)))).sum(axis=1, where=both)
    rest, last_rest = (np.maximum(1.0 - np.where(both, each, 0.0).sum(axis=1), _MIN_REST) for each in (p, q))
    result: Floats = of_tokens + rest * np.log(rest / last_rest)
    return result
