"""Choose one candidate token per position from a forward's statistics, with its probability and confidence.

docs/reference/algorithm.md, section 3, has the published rules.
"""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import TOP_K, Bool, Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.draws import (
    draw_candidates,
    draw_tokens,
    filter_candidates,
    filter_vocabulary,
    neg_entropy_of_kept,
)
from lopa.runtime.errors import BadInputError
from lopa.runtime.options import DecodingParams
from lopa.runtime.state.context import Context
from lopa.runtime.strategy import Candidates
from lopa.runtime.strategy.strategy import confidences_by_distance


def candidates_from_rows(
    rows: RowStatistics, positions: Int64, context: Context, *, step: int, offsets: Int64 | None = None
) -> Candidates:
    """Return greedy or drawn candidates for `rows` at absolute `positions` of the same shape.

    At a temperature, tokens are drawn among the K best (after top_k and top_p), or from the rows' logits if top_k
    allows more. `step`, the number of the strategy's step, seeds the draws. `offsets` count the positions of several
    branches from the first one of their branch. Raises BadInputError if logits are needed but missing.
    """
    source = _from_logits if context.params.draws_from_logits else _from_top_k
    found = source(rows, positions, context, step)
    if not context.params.slides:
        return found
    places = positions if offsets is None else offsets
    return replace(found, confidences=confidences_by_distance(rows.entropy, places, context.params))


def _from_top_k(rows: RowStatistics, positions: Int64, context: Context, step: int) -> Candidates:
    params = context.params
    rows = _without_tokens(rows, context.unwritten)
    logprobs = received = rows.topk_logprobs
    neg_entropy = -rows.entropy
    choice: Int64 | None = None
    if params.filters:
        logprobs = filter_candidates(logprobs, params)
        neg_entropy = neg_entropy_of_kept(logprobs)
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
        confidences = neg_entropy
    if not params.logprobs:
        return Candidates(tokens, probabilities, confidences, entropies=-neg_entropy)
    own = received[..., 0] if choice is None else np.take_along_axis(received, choice, -1)[..., 0]
    return Candidates(tokens, probabilities, confidences, own, -neg_entropy)


def missing_logits(params: DecodingParams) -> BadInputError:
    """Return the error for a parameters that needs logits, for a bundle without logits."""
    return BadInputError(
        f"top_k {params.top_k} with a bundle that returns only the {TOP_K} best candidates",
        expected=f"top_k from 1 to {TOP_K}, or a bundle that returns logits",
        remedy="lower top_k, or export the checkpoint with --with-logits",
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


def _without_tokens(rows: RowStatistics, tokens: tuple[int, ...]) -> RowStatistics:
    """Return `rows` with `tokens` moved behind the other candidates, with probability 0."""
    # In every round of every request: np.isin takes five times as long.
    found: Bool = np.logical_or.reduce([rows.topk_ids == token for token in tokens])
    if not found.any():
        return rows
    order = np.argsort(found, axis=-1, kind="stable")
    logprobs = np.where(found, np.float32(-np.inf), rows.topk_logprobs)
    return RowStatistics(
        np.take_along_axis(rows.topk_ids, order, -1), np.take_along_axis(logprobs, order, -1), rows.entropy
    )
