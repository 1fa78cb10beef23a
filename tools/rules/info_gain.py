"""LoPA with the winner score of the Info-Gain Sampler (arXiv 2602.18176).

The authors' code (yks23/Information-Gain-Sampler, score_candidates) takes the candidate with the largest

    J(a) = -C(a) - H_next(a).

C(a) is the sum of the entropies, before the step, of the positions that candidate a unmasks. H_next(a) is the mean
entropy of the positions that are still masked after it. Without C(a) the code calls the score LookUM. With the
confidence neg_entropy, that is the score by which LoPA chooses its winner. So C(a) is all that this strategy adds.

Three things differ from the published sampler. The candidates are LoPA's branches, not random sets of equally many
positions. H_next covers the open blocks, not the whole answer. A branch without masked positions always wins.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from lopa.runtime.contract import Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import Memory, OwnOption, Strategy


@dataclass(frozen=True, slots=True)
class Entropies:
    """Entropies in nats of the m masked positions that a step sampled."""

    positions: Int64
    """[m]: sampled positions, ascending."""
    values: Float32
    """[m]: entropies of the forward's rows."""

    def before(self, end: int) -> Self:
        """Return the entropies of the positions before `end` (see Memory)."""
        kept = self.positions < end
        return type(self)(self.positions[kept], self.values[kept])


def with_immediate_cost(
    rows: RowStatistics, positions: Int64, memory: Memory | None, params: DecodingParams
) -> tuple[RowStatistics, Memory | None]:
    """Add the cost C(a) of the branch to each of its entropies, so that its mean confidence becomes J(a).

    The cost covers the tokens unmasked since the step before: those of the winner, which all branches share, and the
    branch's lookahead token. Within a branch nothing changes its rank. With top_k or top_p, sampling computes the
    entropies again, and the score is LoPA's.
    """
    assert memory is None or isinstance(memory, Entropies)
    after = Entropies(positions, rows.entropy.copy())
    if memory is None:
        return rows, after
    cost = params.own["cost_weight"] * immediate_cost(memory, positions)
    entropy = (rows.entropy + cost).astype(np.float32)
    return RowStatistics(rows.topk_ids, rows.topk_logprobs, entropy, rows.logits), after


def immediate_cost(last: Entropies, positions: Int64) -> float:
    """Return the sum of the `last` entropies, in nats, of the positions that are not among the masked `positions`."""
    return float(last.values[~np.isin(last.positions, positions)].sum(dtype=np.float64))


INFO_GAIN = Strategy(
    name="info_gain",
    summary="decode as LoPA, with the winner score of the Info-Gain Sampler",
    rescore=with_immediate_cost,
    options=(OwnOption(name="cost_weight", help="Weight of the unmasked tokens' entropies.", default=1.0, max=1e6),),
    pipelined=True,
    looks_ahead=True,
    default_branches=None,
    from_one_branch=False,
    confidence=lambda own: "neg_entropy",  # noqa: ARG005
)
