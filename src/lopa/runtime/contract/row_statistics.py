"""What a forward answered about rows of one request. Pure; knows arrays only."""

from dataclasses import dataclass
from types import EllipsisType

import numpy as np

from lopa.runtime.contract.forward import Bool, Float32, Int64

Index = int | slice | EllipsisType | Bool | Int64 | tuple[int | slice | Int64, ...]


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of rows of one request: ids and log-probabilities [..., K], entropy [...], and logits where they are
    answered [..., V], before the temperature."""

    topk_ids: Int64
    topk_logprobs: Float32
    entropy: Float32
    logits: Float32 | None = None

    def __getitem__(self, index: Index) -> "RowStatistics":
        logits = None if self.logits is None else self.logits[index]
        return RowStatistics(self.topk_ids[index], self.topk_logprobs[index], self.entropy[index], logits)

    def copy(self) -> "RowStatistics":
        """The same in memory of its own, so that the statistics it was cut from can be freed."""
        logits = None if self.logits is None else self.logits.copy()
        return RowStatistics(self.topk_ids.copy(), self.topk_logprobs.copy(), self.entropy.copy(), logits)


def put_rows(into: RowStatistics, index: Index, rows: RowStatistics) -> None:
    """Write `rows` over those at `index`. Logits stay where `rows` have none."""
    into.topk_ids[index], into.topk_logprobs[index] = rows.topk_ids, rows.topk_logprobs
    into.entropy[index] = rows.entropy
    if into.logits is not None and rows.logits is not None:
        into.logits[index] = rows.logits


def with_kept_row(rows: RowStatistics, kept: RowStatistics | None, lacking: Bool) -> RowStatistics:
    """`rows` [B, Q] with those that are `lacking` [B, Q] replaced by the row `kept` [K] at the last commit, if any."""
    if kept is None or not lacking.any():
        return rows
    has_logits = kept.logits is not None and rows.logits is not None
    return RowStatistics(
        np.where(lacking[..., None], kept.topk_ids, rows.topk_ids),
        np.where(lacking[..., None], kept.topk_logprobs, rows.topk_logprobs),
        np.where(lacking, kept.entropy, rows.entropy),
        np.where(lacking[..., None], kept.logits, rows.logits) if has_logits else None,  # type: ignore[arg-type]
    )
