"""Draw tokens from a forward's candidates or logits.

A draw depends only on seed, step and position, so it is the same on every branch and in any batch.
"""

import numpy as np

from lopa.runtime.contract import TOP_K, Bool, Float32, Floats, Int64
from lopa.runtime.options import DecodingParams


def filter_candidates(logprobs: Float32, params: DecodingParams) -> Float32:
    """Return log-probabilities [..., K], best first, after top_p, then top_k, normalized again over the remaining
    candidates."""
    probabilities = np.exp(logprobs)
    keep = np.ones(logprobs.shape, np.bool_)
    if params.top_p_of_kept:
        probabilities = probabilities / probabilities[..., : params.top_k].sum(axis=-1, keepdims=True)
    if params.top_p < 1:
        # A candidate stays while the mass before it is below top_p. The first always stays.
        keep &= (np.cumsum(probabilities, axis=-1) - probabilities) < params.top_p
    if params.top_k:
        keep[..., params.top_k :] = False
    return _normalize(logprobs, keep, logprobs[..., :1])


def filter_vocabulary(logits: Float32, params: DecodingParams, *, without: tuple[int, ...]) -> Float32:
    """Return log-probabilities [..., V] of `logits` [..., V] at the temperature, after top_p, then top_k.

    The tokens `without` get probability 0.
    """
    tempered = (logits / np.float32(params.temperature or 1.0)).astype(np.float32)
    tempered[..., list(without)] = -np.inf
    best = tempered.max(axis=-1, keepdims=True)
    logprobs: Float32 = tempered - best - np.log(np.exp(tempered - best).sum(axis=-1, keepdims=True))
    if not params.top_k and params.top_p >= 1:
        return logprobs
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    sorted_logprobs = filter_candidates(np.take_along_axis(logprobs, order, -1), params)
    result = np.empty_like(logprobs)
    np.put_along_axis(result, order, sorted_logprobs, -1)
    return result


def draw_candidates(logprobs: Float32, params: DecodingParams, *, step: int, positions: Int64) -> Int64:
    """Return the drawn columns, [...], of `logprobs` [..., K] at `positions` [...]."""
    table = np.random.Generator(np.random.Philox(key=params.seed, counter=[0, 0, step, 0])).random(
        (int(positions.max(initial=0)) + 1, TOP_K)
    )
    columns: Int64 = np.argmax(logprobs + _gumbel(table[positions]), axis=-1)
    return columns


def draw_tokens(logprobs: Float32, params: DecodingParams, *, step: int, positions: Int64) -> Int64:
    """Return the drawn ids, [...], of `logprobs` [..., V] at `positions` [...]."""
    drawn = np.empty(positions.shape, np.int64)
    for index in np.ndindex(positions.shape):
        counter = [0, int(positions[index]), step, 1]
        generator = np.random.Generator(np.random.Philox(key=params.seed, counter=counter))
        uniform = generator.random(logprobs.shape[-1:])
        noisy: Float32 = logprobs[index] + _gumbel(uniform)
        drawn[index] = np.argmax(noisy)
    return drawn


def neg_entropy_of_kept(logprobs: Float32) -> Float32:
    """Return the sum of p ln p, [...], over the last axis, skipping probabilities of 0."""
    finite = np.where(np.isneginf(logprobs), np.float32(0), logprobs)
    kept: Float32 = (np.exp(logprobs) * finite).sum(axis=-1, dtype=np.float32)
    return kept


def _normalize(logprobs: Float32, keep: Bool, best: Float32) -> Float32:
    # Log-probabilities are computed relative to the best candidate, which always stays. A single remaining candidate
    # has log-probability 0, not almost 0. Positions with a single candidate are therefore tied, and rounding does not
    # rank them.
    relative = np.where(keep, logprobs - best, np.float32(-np.inf))
    result: Float32 = (relative - np.log(np.exp(relative).sum(axis=-1, keepdims=True))).astype(np.float32)
    return result


def _gumbel(uniform: Floats) -> Float32:
    """Return noise for the Gumbel-max trick."""
    noise: Floats = -np.log(-np.log(np.clip(uniform, 1e-12, 1 - 1e-12)))
    narrow: Float32 = noise.astype(np.float32)
    return narrow
