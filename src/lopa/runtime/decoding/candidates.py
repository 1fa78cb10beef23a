"""Choose one candidate token per position from a forward's statistics, with its probability and confidence.

docs/reference/algorithm.md, section 3, has the published rules. A draw depends only on seed, step and position, so it
is the same on every branch and in any batch.
"""

import math
from dataclasses import replace

import numpy as np

from lopa.runtime.checked_values import shown
from lopa.runtime.contract import TOP_K, Bool, Float32, Floats, Int64
from lopa.runtime.contract.row_statistics import RowStatistics, statistics_error
from lopa.runtime.errors import FieldError
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.context import Context
from lopa.runtime.strategy import Candidates
from lopa.runtime.strategy.draws import uniform_at
from lopa.runtime.strategy.strategy import confidences_by_distance


def candidates_from_rows(
    rows: RowStatistics, positions: Int64, context: Context, *, step: int, offsets: Int64 | None = None
) -> Candidates:
    """Return greedy or drawn candidates for `rows` at absolute `positions` of the same shape.

    At a temperature, tokens are drawn among the K best (after top_k, top_p and min_p), or from the rows' logits if
    top_k allows more. `step`, the number of the strategy's step, seeds the draws. `offsets` count the positions of
    several branches from the first one of their branch. Raises FieldError if logits are needed but missing.
    """
    source = _from_logits if context.params.draws_from_logits else _from_top_k
    found = source(rows, positions, context, step)
    if not context.params.slides:
        return found
    places = positions if offsets is None else offsets
    return replace(found, confidences=confidences_by_distance(rows.entropy, places, context.params))


def _from_top_k(rows: RowStatistics, positions: Int64, context: Context, step: int) -> Candidates:
    params = context.params
    rows = _without_tokens(rows, context.unwritten, positions)
    logprobs = received = rows.topk_logprobs
    entropies = rows.entropy
    choice: Int64 | None = None
    if params.filters:
        logprobs = filter_candidates(logprobs, params)
        entropies = -neg_entropy_of_kept(logprobs)
    if params.temperature > 0:
        tempered = logprobs / np.float32(params.temperature / params.logits_temperature)
        choice = draw_candidates(tempered, params, step=step, positions=positions)[..., None]
    best = logprobs[..., 0] if choice is None else np.take_along_axis(logprobs, choice, -1)[..., 0]
    tokens = rows.topk_ids[..., 0] if choice is None else np.take_along_axis(rows.topk_ids, choice, -1)[..., 0]
    probabilities = np.exp(best)
    if params.confidence == "probability":
        confidences = probabilities
    elif params.confidence == "margin":
        confidences = np.exp(logprobs[..., 0]) - np.exp(logprobs[..., 1])
    else:
        confidences = -entropies
    if not params.logprobs:
        return Candidates(tokens, probabilities, confidences, entropies=entropies)
    own = received[..., 0] if choice is None else np.take_along_axis(received, choice, -1)[..., 0]
    return Candidates(tokens, probabilities, confidences, own, entropies)


def missing_logits(params: DecodingParams) -> FieldError:
    """Return the error for a parameters that needs logits, for a bundle without logits."""
    name = next(iter(params.logit_changes), "top_k")
    without = f"top_k from 1 to {TOP_K}" if name == "top_k" else f"no {name}"
    return FieldError(
        name,
        f"{name} {shown(getattr(params, name))} with a bundle that returns only the {TOP_K} best candidates",
        expected=f"{without}, or a bundle that was exported with logits",
        remedy=f"use top_k {TOP_K}" if name == "top_k" else f"remove {name}",
        operator="export the checkpoint with --with-logits",
    )


def _from_logits(rows: RowStatistics, positions: Int64, context: Context, step: int) -> Candidates:
    params = context.params
    if rows.logits is None:
        raise missing_logits(params)
    logprobs = filter_vocabulary(rows.logits, params, without=context.unwritten)
    if params.temperature > 0:
        tokens = draw_tokens(logprobs, params, step=step, positions=positions)
    else:
        tokens = logprobs.argmax(axis=-1)
    own = np.take_along_axis(logprobs, tokens[..., None], -1)[..., 0]
    probabilities, neg_entropy = np.exp(own), neg_entropy_of_kept(logprobs)
    if params.confidence == "probability":
        confidences = probabilities
    elif params.confidence == "margin":
        two = np.exp(np.partition(logprobs, -2, axis=-1)[..., -2:])
        confidences = two[..., 1] - two[..., 0]
    else:
        confidences = neg_entropy
    return Candidates(tokens, probabilities, confidences, own if params.logprobs else None, -neg_entropy)


def _without_tokens(rows: RowStatistics, tokens: tuple[int, ...], positions: Int64) -> RowStatistics:
    """Return `rows` with `tokens` moved behind the other candidates, with probability 0.

    Raises NonFiniteAnswerError for a row without other candidates, which would be masked again in every step.
    """
    # In every round of every request: np.isin takes five times as long.
    if not any(np.count_nonzero(rows.topk_ids == token) for token in tokens):
        return rows
    found: Bool = np.logical_or.reduce([rows.topk_ids == token for token in tokens])
    if (lacking := found.all(axis=-1)).any():
        received = f"the forward returned no token that can be written at position {positions[lacking][0]}"
        raise statistics_error(received, "a candidate other than the mask token")
    order = np.argsort(found, axis=-1, kind="stable")
    logprobs = np.where(found, np.float32(-np.inf), rows.topk_logprobs)
    return RowStatistics(
        np.take_along_axis(rows.topk_ids, order, -1), np.take_along_axis(logprobs, order, -1), rows.entropy
    )


def filter_candidates(logprobs: Float32, params: DecodingParams) -> Float32:
    """Return log-probabilities [..., K], best first, after top_p, min_p and top_k, normalized again over the remaining
    candidates."""
    probabilities = np.exp(logprobs)
    keep = np.ones(logprobs.shape, np.bool_)
    if params.top_p_of_kept:
        probabilities = probabilities / probabilities[..., : params.top_k].sum(axis=-1, keepdims=True)
    if params.top_p < 1:
        # A candidate stays while the mass before it is below top_p. The first always stays.
        keep &= (np.cumsum(probabilities, axis=-1) - probabilities) < params.top_p
    if params.min_p:
        keep &= logprobs - logprobs[..., :1] >= math.log(params.min_p)
    if params.top_k:
        keep[..., params.top_k :] = False
    return _normalize(logprobs, keep, logprobs[..., :1])


def filter_vocabulary(logits: Float32, params: DecodingParams, *, without: tuple[int, ...]) -> Float32:
    """Return log-probabilities [..., V] of `logits` [..., V] at the temperature, after top_p, min_p and top_k.

    The tokens `without` get probability 0.
    """
    tempered = (logits / np.float32(params.temperature or 1.0)).astype(np.float32)
    tempered[..., list(without)] = -np.inf
    logprobs = log_softmax(tempered)
    if not params.top_k and params.top_p >= 1 and not params.min_p:
        return logprobs
    order = np.argsort(-logprobs, axis=-1, kind="stable")
    sorted_logprobs = filter_candidates(np.take_along_axis(logprobs, order, -1), params)
    result = np.empty_like(logprobs)
    np.put_along_axis(result, order, sorted_logprobs, -1)
    return result


def log_softmax(logits: Float32) -> Float32:
    """Return the log-probabilities [..., V] of `logits` [..., V]."""
    relative = logits - logits.max(axis=-1, keepdims=True)
    logprobs: Float32 = relative - np.log(np.exp(relative).sum(axis=-1, keepdims=True))
    return logprobs


def draw_candidates(logprobs: Float32, params: DecodingParams, *, step: int, positions: Int64) -> Int64:
    """Return the drawn columns, [...], of `logprobs` [..., K] at `positions` [...]."""
    uniform = uniform_at(positions, TOP_K, seed=params.seed, step=step, stream=0)
    columns: Int64 = np.argmax(logprobs + _gumbel(uniform), axis=-1)
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
