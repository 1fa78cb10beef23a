"""LoPA that also unmasks the most confident positions if two steps agree on their tokens (CCD, arXiv 2512.02044).

The rule is the one of the authors' code (tonyckc/CCD-DLM-code, _sample_inference_lookahead with seek_mode). A step
compares its V most confident masked positions with the V most confident ones that the step before left masked. If its
most confident position is among them, it unmasks all that are in both sets and whose best token is the same.
Otherwise it unmasks its most confident position alone.

Three things differ from the published sampler. Tokens above skip_threshold are unmasked too; 1.0 switches that off. The
positions are those of the open blocks, not of the whole answer. V is constant, whereas the code raises it from 1 after
five steps, and lowers it to 1 for the last tenth of the answer.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import BlockView, Memory, OwnOption, Strategy
from lopa.runtime.strategy.strategy import constant


@dataclass(frozen=True, slots=True)
class Predictions:
    """Predictions of a step for the m masked positions that it sampled."""

    positions: Int64
    """[m]: sampled positions, ascending."""
    tokens: Int64
    """[m]: best token of each position."""
    entropies: Float32
    """[m]: entropies in nats."""
    agreed: Int64
    """[a]: positions whose tokens agree with the step before, ascending."""

    def before(self, end: int) -> Self:
        """Return the predictions for the positions before `end` (see Memory)."""
        kept = self.positions < end
        own = self.agreed[self.agreed < end]
        return type(self)(self.positions[kept], self.tokens[kept], self.entropies[kept], own)


def with_predictions(
    rows: RowStatistics, positions: Int64, memory: Memory | None, params: DecodingParams
) -> tuple[RowStatistics, Memory | None]:
    """Return the rows unchanged and record the step's predictions."""
    assert memory is None or isinstance(memory, Predictions)
    tokens, entropies = rows.topk_ids[:, 0].copy(), rows.entropy.copy()
    agreed = agreed_positions(memory, positions, tokens, entropies, params.own["compared_positions"])
    return rows, Predictions(positions, tokens, entropies, agreed)


def agreed_positions(
    last: Predictions | None, positions: Int64, tokens: Int64, entropies: Float32, count: int
) -> Int64:
    """Return the positions among the `count` most confident ones of this step and of the `last` one with equal tokens.

    `positions`, `tokens` and `entropies` [n] belong to this step. Only positions that are still masked count for the
    last step. Return none if this step's most confident position is not among those of the last step.
    """
    if last is None or not len(positions):
        return np.empty(0, np.int64)
    left = np.isin(last.positions, positions)
    before = _most_confident(last.positions[left], last.entropies[left], count)
    now = _most_confident(positions, entropies, count)
    if now[0] not in before:
        return np.empty(0, np.int64)
    both = np.intersect1d(now, before)
    same = tokens[np.searchsorted(positions, both)] == last.tokens[np.searchsorted(last.positions, both)]
    agreed: Int64 = both[same]
    return agreed


def _most_confident(positions: Int64, entropies: Float32, count: int) -> Int64:
    """Return the `count` positions with the lowest entropies, the lowest first, ties by position."""
    return positions[np.argsort(entropies, kind="stable")[:count]]


def constant_unless_agreed(block: BlockView, params: DecodingParams) -> Float32:
    """Return skip_threshold, and minus infinity for the positions on which two steps agree."""
    assert isinstance(block.memory, Predictions)
    agreed = np.isin(block.positions, block.memory.agreed)
    return np.where(agreed, np.float32(-math.inf), constant(block, params))


CONSISTENCY = Strategy(
    name="consistency",
    summary="decode as LoPA, and unmask confident positions whose tokens agree in two steps (CCD)",
    rescore=with_predictions,
    threshold=constant_unless_agreed,
    options=(
        OwnOption(
            name="compared_positions",
            help="Most confident positions of a step that are compared with the step before.",
            default=4,
            min=1,
            max=1024,
        ),
    ),
    pipelined=True,
    looks_ahead=True,
    default_branches=None,
    from_one_branch=False,
)
