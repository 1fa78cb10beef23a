"""Credit that a token earns by being a position's best step after step: CreditDecoding (arXiv 2510.06133). Pure."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import TOP_K, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.strategy.views import match_positions

KEPT, EARNED_POWER, WEIGHT = 0.8, 0.2, 0.7
"""Published: the share of credit that stays from step to step, the power of the probability that is earned, and what
the logarithm of 1 + credit weighs beside the logits."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Of m positions that a step asked about: the tokens with most credit, at most TOP_K of each."""

    positions: Int64
    """[m], ascending."""
    tokens: Int64
    """[m, TOP_K]; -1 where there is none."""
    amounts: Floats
    """[m, TOP_K]"""

    def before(self, end: int) -> Self:
        """As a Memory: of positions before `end`."""
        kept = self.positions < end
        return type(self)(self.positions[kept], self.tokens[kept], self.amounts[kept])


def credit_after(last: Credit | None, rows: RowStatistics, positions: Int64) -> Credit:
    """Credit after a step that said `rows` [n] of `positions` [n]: less of what there was, and more for the best."""
    count = len(positions)
    tokens, amounts = np.full((count, TOP_K), -1, np.int64), np.zeros((count, TOP_K))
    if last is not None:
        found, places = match_positions(last.positions, positions)
        tokens[found], amounts[found] = last.tokens[places[found]], KEPT * last.amounts[places[found]]
    best = rows.topk_ids[:, 0]
    known = tokens == best[:, None]
    each, slot = np.arange(count), np.where(known.any(axis=1), known.argmax(axis=1), amounts.argmin(axis=1))
    amounts[each, slot] *= known[each, slot]  # of another token, which goes
    amounts[each, slot] += np.exp(EARNED_POWER * rows.topk_logprobs[:, 0].astype(np.float64))
    tokens[each, slot] = best
    return Credit(positions, tokens, amounts)


def credited(rows: RowStatistics, credit: Credit, temperature: float) -> RowStatistics:
    """`rows` [n] after adding WEIGHT log(1 + credit) to the logits over the `temperature`, of the same positions as
    `credit`.

    Exact, the entropy too, but for credit of tokens that are no longer among the K best; logits are exact for all.
    """
    same = rows.topk_ids[:, :, None] == credit.tokens[:, None, :]
    added = WEIGHT * np.log1p((same * credit.amounts[:, None, :]).sum(axis=2))
    logprobs = rows.topk_logprobs.astype(np.float64)
    known = np.where(np.isneginf(logprobs), 0.0, logprobs)
    p = np.exp(logprobs)
    total = 1.0 + (p * np.expm1(added)).sum(axis=1)
    plainly, more = (p * known).sum(axis=1), (p * np.exp(added) * (known + added)).sum(axis=1)
    entropy = np.maximum(np.log(total) + (rows.entropy + plainly - more) / total, 0.0)
    after = logprobs + added - np.log(total)[:, None]
    order = np.argsort(-after, axis=1, kind="stable")
    return RowStatistics(
        np.take_along_axis(rows.topk_ids, order, 1),
        np.take_along_axis(after, order, 1).astype(np.float32),
        entropy.astype(np.float32),
        None if rows.logits is None else _credited_logits(rows.logits, credit, temperature),
    )


def _credited_logits(logits: Float32, credit: Credit, temperature: float) -> Float32:
    """[n, V], before the temperature."""
    row, slot = np.nonzero(credit.tokens >= 0)
    result = logits.copy()
    result[row, credit.tokens[row, slot]] += temperature * WEIGHT * np.log1p(credit.amounts[row, slot])
    return result
