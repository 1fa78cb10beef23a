"""Statistics of rows of which only some candidates may be written, by a grammar or at the edge of a hole."""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.options import DecodingParams

_MIN_LOGPROB = np.float32(-100.0)
"""Lower bound of the log-probability of a token that is not among the model's candidates."""


def sorted_candidates(row: RowStatistics, keep: Bool) -> tuple[Int64, Float32]:
    """Return ids and log-probabilities with the candidates selected by `keep` first, and the others impossible."""
    order = np.argsort(~keep, kind="stable")
    return row.topk_ids[order], np.where(keep, row.topk_logprobs, np.float32(-np.inf))[order]


def row_of_token(row: RowStatistics, token: int, params: DecodingParams) -> RowStatistics:
    """Return a row with `token` alone, no more probable than the last candidate of `row`."""
    logprobs = np.full(row.topk_logprobs.shape, -np.inf, np.float32)
    logprobs[0] = max(row.topk_logprobs.min(), _MIN_LOGPROB)
    logits = None
    if row.logits is not None and params.draws_from_logits:
        logits = np.full(row.logits.shape, -np.inf, np.float32)
        logits[token] = row.logits[token]
    return RowStatistics(np.full(row.topk_ids.shape, token, np.int64), logprobs, row.entropy, logits)


def copied_rows(rows: RowStatistics, params: DecodingParams) -> RowStatistics:
    """Return a copy of `rows` to modify. Logits are large and copied only if they are read again."""
    return rows.copy() if params.draws_from_logits else replace(replace(rows, logits=None).copy(), logits=rows.logits)
