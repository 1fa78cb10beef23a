"""Credit that a token earns while it stays a position's best candidate: CreditDecoding (arXiv 2510.06133)."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import TOP_K, Float32, Floats, Int64
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
