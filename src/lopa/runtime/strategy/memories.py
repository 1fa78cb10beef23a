"""Memories of strategies from earlier steps.

KLASS (arXiv 2511.05664) compares each position's distributions in consecutive steps by their KL divergence.
CreditDecoding (arXiv 2510.06133) gives credit to a token while it stays a position's best candidate.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import TOP_K, Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.strategy.strategy import match_positions

DECAY, EARNED_POWER, WEIGHT = 0.8, 0.2, 0.7
"""Published values: the factor per step, the exponent of the probability that is earned, and the weight of
log(1 + credit) in the logits."""


@dataclass(frozen=True, slots=True)
class Credit:
    """The tokens with the most credit at each of the m positions that a step sampled, at most TOP_K per position."""

    positions: Int64
    """[m]: sampled positions, ascending."""
    tokens: Int64
    """[m, TOP_K]: ids of the tokens, -1 for an empty slot."""
    amounts: Floats
    """[m, TOP_K]: credit of each token."""

    def before(self, end: int) -> Self:
        """Return the credit of the positions before `end` (see Memory)."""
        kept = self.positions < end
        return type(self)(self.positions[kept], self.tokens[kept], self.amounts[kept])


def credit_after(last: Credit | None, rows: RowStatistics, positions: Int64) -> Credit:
    """Return the credit after a step with statistics `rows` [n] at `positions` [n].

    All credit decays, and each position's best token earns some.
    """
    count = len(positions)
    tokens, amounts = np.full((count, TOP_K), -1, np.int64), np.zeros((count, TOP_K))
    if last is not None:
        found, places = match_positions(last.positions, positions)
        tokens[found], amounts[found] = last.tokens[places[found]], DECAY * last.amounts[places[found]]
    best = rows.topk_ids[:, 0]
    known = tokens == best[:, None]
    each, slot = np.arange(count), np.where(known.any(axis=1), known.argmax(axis=1), amounts.argmin(axis=1))
    amounts[each, slot] *= known[each, slot]  # clears the slot if it held another token
    amounts[each, slot] += np.exp(EARNED_POWER * rows.topk_logprobs[:, 0].astype(np.float64))
    tokens[each, slot] = best
    return Credit(positions, tokens, amounts)


def add_credit(rows: RowStatistics, credit: Credit, temperature: float) -> RowStatistics:
    """Return `rows` [n] after adding WEIGHT log(1 + credit) to the logits divided by `temperature`.

    `credit` holds the same positions. Log-probabilities and entropies ignore the credit of tokens that are no longer
    among the K best; otherwise they are exact. Logits include all credit.
    """
    same = rows.topk_ids[:, :, None] == credit.tokens[:, None, :]
    added = WEIGHT * np.log1p((same * credit.amounts[:, None, :]).sum(axis=2))
    logprobs = rows.topk_logprobs.astype(np.float64)
    known = np.where(np.isneginf(logprobs), 0.0, logprobs)
    p = np.exp(logprobs)
    total = 1.0 + (p * np.expm1(added)).sum(axis=1)
    before, after_credit = (p * known).sum(axis=1), (p * np.exp(added) * (known + added)).sum(axis=1)
    entropy = np.maximum(np.log(total) + (rows.entropy + before - after_credit) / total, 0.0)
    after = logprobs + added - np.log(total)[:, None]
    order = np.argsort(-after, axis=1, kind="stable")
    return RowStatistics(
        np.take_along_axis(rows.topk_ids, order, 1),
        np.take_along_axis(after, order, 1).astype(np.float32),
        entropy.astype(np.float32),
        None if rows.logits is None else _logits_with_credit(rows.logits, credit, temperature),
    )


def _logits_with_credit(logits: Float32, credit: Credit, temperature: float) -> Float32:
    """Return the logits [n, V] with credit added, before the temperature."""
    row, slot = np.nonzero(credit.tokens >= 0)
    result = logits.copy()
    result[row, credit.tokens[row, slot]] += temperature * WEIGHT * np.log1p(credit.amounts[row, slot])
    return result


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
