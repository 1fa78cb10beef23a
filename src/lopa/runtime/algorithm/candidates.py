"""From a forward's statistics to one candidate token per position, with its probability and confidence.

The published rules are those of docs/lopa.md, section 3. Pure; knows no branch and no block.
"""

from dataclasses import replace

import numpy as np

from lopa.runtime.algorithm.draws import (
    drawn_candidates,
    drawn_tokens,
    filtered_candidates,
    filtered_vocabulary,
    neg_entropy_of_kept,
)
from lopa.runtime.contract import TOP_K, Int64
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.row_statistics import RowStatistics
from lopa.runtime.strategy.candidates import Candidates
from lopa.runtime.strategy.places import confidences_by_distance


def candidates_from_rows(
    rows: RowStatistics, positions: Int64, config: GenerationConfig, *, step: int, mask_token: int
) -> Candidates:
    """Greedy or drawn candidates for `rows`; `positions` (shape of rows) are the absolute positions they speak of.

    At a temperature the tokens are drawn among the K best (after top_k and top_p), or, where top_k asks for more, of
    the rows' logits. Raises BadInputError where these are needed and not there.
    """
    source = _drawn_from_logits if config.draws_from_logits else _from_best
    found = source(rows, positions, config, step=step, mask_token=mask_token)
    if not config.slides:
        return found
    return replace(found, confidences=confidences_by_distance(rows.entropy, positions, config))


def _from_best(
    rows: RowStatistics, positions: Int64, config: GenerationConfig, *, step: int, mask_token: int
) -> Candidates:
    if not config.published:
        rows = _without_token(rows, mask_token)
    logprobs = said = rows.topk_logprobs
    neg_entropy = -rows.entropy
    choice: Int64 | None = None
    if config.filters:
        logprobs, filtered = filtered_candidates(logprobs, config)
        if filtered:
            neg_entropy = neg_entropy_of_kept(logprobs)
    if config.temperature > 0:
        tempered = logprobs / np.float32(config.temperature / config.logits_temperature)
        choice = drawn_candidates(tempered, config, step=step, positions=positions)[..., None]
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
        return Candidates(tokens, probabilities, confidences, entropies=-neg_entropy)
    own = said[..., 0] if choice is None else np.take_along_axis(said, choice, -1)[..., 0]
    return Candidates(tokens, probabilities, confidences, own, -neg_entropy)


def without_logits(config: GenerationConfig) -> BadInputError:
    """The error where logits are needed and not there."""
    return BadInputError(
        f"top_k {config.top_k} where the {TOP_K} best candidates alone are answered",
        expected=f"top_k from 1 to {TOP_K}, or a bundle that answers its logits",
        remedy="lower top_k, or export the checkpoint with --with-logits",
    )


def _drawn_from_logits(
    rows: RowStatistics, positions: Int64, config: GenerationConfig, *, step: int, mask_token: int
) -> Candidates:
    if rows.logits is None:
        raise without_logits(config)
    logprobs = filtered_vocabulary(rows.logits, config, without=None if config.published else mask_token)
    if config.temperature > 0:
        tokens = drawn_tokens(logprobs, config, step=step, positions=positions)
    else:
        tokens = logprobs.argmax(axis=-1)
    own = np.take_along_axis(logprobs, tokens[..., None], -1)[..., 0]
    probabilities, neg_entropy = np.exp(own), neg_entropy_of_kept(logprobs)
    if config.confidence == "probability":
        confidences = probabilities
    elif config.confidence == "margin":
        two = np.exp(np.partition(logprobs, -2, axis=-1)[..., -2:])
        confidences = two[..., 1] - two[..., 0]
    else:
        confidences = neg_entropy
    return Candidates(tokens, probabilities, confidences, own if config.logprobs else None, -neg_entropy)


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
