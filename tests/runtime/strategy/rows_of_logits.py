"""Row statistics computed from logits in float64, by definition."""

import numpy as np

from lopa.runtime.contract import Floats
from lopa.runtime.contract.row_statistics import RowStatistics


def rows_of(logits: Floats, temperature: float = 1.0) -> RowStatistics:
    """Return the statistics of logits [n, V] at the temperature: the 8 best, and the logits before the temperature."""
    raw, logits = logits, logits / temperature
    logprobs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    order = np.argsort(-logprobs, axis=-1, kind="stable")[..., :8]
    best = np.take_along_axis(logprobs, order, -1)
    entropy = -(np.exp(logprobs) * logprobs).sum(-1)
    return RowStatistics(
        order.astype(np.int64), best.astype(np.float32), entropy.astype(np.float32), raw.astype(np.float32)
    )
