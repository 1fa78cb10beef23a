"""From a forward's statistics to one candidate token per position, with its probability and confidence.

The published rules are those of docs/lopa.md, section 3. Pure; knows no branch and no block.
"""

from dataclasses import dataclass
from types import EllipsisType

import numpy as np

from lopa.runtime.contract import TOP_K, Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig

Index = int | slice | EllipsisType | Bool | Int64 | tuple[int | slice, ...]


@dataclass(frozen=True)
class Candidates:
    """One candidate for each wanted row; all arrays of one shape, e.g. [B, Q]."""

    tokens: Int64
    probabilities: Float32
    confidences: Float32
    logprobs: Float32 | None = None
    """Of the tokens as the model said, before top_k and top_p; only where they are asked for."""

    def __getitem__(self, index: Index) -> "Candidates":
        logprobs = None if self.logprobs is None else self.logprobs[index]
        return Candidates(self.tokens[index], self.probabilities[index], self.confidences[index], logprobs)


@dataclass(frozen=True)
class RowStatistics:
    """Statistics of rows of one request: ids and log-probabilities [..., K], entropy [...]."""

    topk_ids: Int64
    topk_logprobs: Float32
    entropy: Float32

    def __getitem__(self, index: Index) -> "RowStatistics":
        return RowStatistics(self.topk_ids[index], self.topk_logprobs[index], self.entropy[index])

    def copy(self) -> "RowStatistics":
        """The same in memory of its own, so that the statistics it was cut from can be freed."""
        return RowStatistics(self.topk_ids.copy(), self.topk_logprobs.copy(), self.entropy.copy())


def with_kept_row(rows: RowStatistics, kept: RowStatistics | None, lacking: Bool) -> RowStatistics:
    """`rows` [B, Q] with those that are `lacking` [B, Q] replaced by the row `kept` [K] at the last commit, if any."""
    if kept is None or not lacking.any():
        return rows
    return RowStatistics(
        np.where(lacking[..., None], kept.topk_ids, rows.topk_ids),
        np.where(lacking[..., None], kept.topk_logprobs, rows.topk_logprobs),
        np.where(lacking, kept.entropy, rows.entropy),
    )


def candidates_from_rows(
    rows: RowStatistics, positions: Int64, config: GenerationConfig, *, step: int, mask_token: int
) -> Candidates:
    """Greedy or drawn candidates for `rows`; `positions` (shape of rows) are the absolute positions they speak of.

    At a temperature the tokens are drawn among the K best (after top_k and top_p). The draw depends on seed, step and
    position alone, so that it is the same on every branch and in any mix of requests.
    """
    if not config.published:
        rows = _without_token(rows, mask_token)
    logprobs = said = rows.topk_logprobs
    neg_entropy = -rows.entropy
    choice: Int64 | None = None
    if config.temperature > 0:
        logprobs, filtered = _filtered(logprobs, config)
        if filtered:
            neg_entropy = _neg_entropy_of_kept(logprobs)
        choice = np.argmax(logprobs + _gumbel_noise(config.draw_seed, step, positions), axis=-1)[..., None]
    best = logprobs[..., 0] if choice is None else np.take_along_axis(logprobs, choice, -1)[..., 0]
    tokens = rows.topk_ids[..., 0] if choice is None else np.take_along_axis(rows.topk_ids, choice, -1)[..., 0]
    probabilities = np.exp(best)
    if config.confidence == "probability":
        confidences = probabilities
    elif config.confidence == "margin":
        confidences = np.exp(logprobs[..., 0]) - np.exp(logprobs[..., 1])
    else:
        confidences = neg_entropy
    if not config.logprobs:
        return Candidates(tokens, probabilities, confidences)
    own = said[..., 0] if choice is None else np.take_along_axis(said, choice, -1)[..., 0]
    return Candidates(tokens, probabilities, confidences, own)


def _without_token(rows: RowStatistics, token: int) -> RowStatistics:
    """`rows` with `token` moved behind the other candidates and given no probability."""
    found = rows.topk_ids == token
    if not found.any():
        return rows
    order = np.argsort(found, axis=-1, kind="stable")
    logprobs = np.where(found, np.float32(-np.inf), rows.topk_logprobs)
    return RowStatistics(
        np.take_along_axis(rows.topk_ids, order, -1), np.take_along_axis(logprobs, order, -1), rows.entropy
    )


def _filtered(logprobs: Float32, config: GenerationConfig) -> tuple[Float32, bool]:
    """Log-probabilities after top_p, then top_k, renormalised over what is kept; and whether anything was asked."""
    if config.top_k is None and config.top_p is None:
        return logprobs, False
    probabilities = np.exp(logprobs)
    keep = np.ones(logprobs.shape, np.bool_)
    if config.top_p is not None:
        # A candidate stays while the mass before it is below top_p; the first always stays.
        keep &= (np.cumsum(probabilities, axis=-1) - probabilities) < config.top_p
    if config.top_k is not None:
        keep[..., config.top_k :] = False
    # Relative to the best candidate, which is always kept: one that is left alone has log-probability 0, not almost 0,
    # so that positions with a single candidate are tied and no rounding ranks them.
    relative = np.where(keep, logprobs - logprobs[..., :1], np.float32(-np.inf))
    return (relative - np.log(np.exp(relative).sum(axis=-1, keepdims=True))).astype(np.float32), True


def _neg_entropy_of_kept(logprobs: Float32) -> Float32:
    finite = np.where(np.isneginf(logprobs), np.float32(0), logprobs)
    kept: Float32 = (np.exp(logprobs) * finite).sum(axis=-1, dtype=np.float32)
    return kept


def _gumbel_noise(seed: int, step: int, positions: Int64) -> Float32:
    """Gumbel noise [..., K] for the Gumbel-max draw, from a counter-based generator keyed by seed, step, position."""
    table = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, step, 0])).random(
        (int(positions.max(initial=0)) + 1, TOP_K)
    )
    uniform = np.clip(table[positions], 1e-12, 1 - 1e-12)
    return (-np.log(-np.log(uniform))).astype(np.float32)
