"""What a forward said of one position, without the candidates that a grammar forbids there. Pure; knows no branch."""

from collections.abc import Callable, Collection

import numpy as np

from lopa.runtime.contract import Bool, Float32, Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.sequence.row_statistics import RowStatistics

MOST_REFUSED = 16
"""Tokens that a grammar allows at one position, and for which the answer has no room; then it goes the way out."""
_LEAST = np.float32(-100.0)
"""Of log-probabilities: what a token that the model did not name has where the last that it named has none."""


def allowed_row(
    row: RowStatistics, state: GrammarState, room: int, config: GenerationConfig, refused: Collection[int] = ()
) -> RowStatistics:
    """`row` [K] for the position behind `state`, the forbidden candidates behind the others and without a probability.

    Logits are changed, and answered, only where tokens are drawn from them: of a large vocabulary they are long.
    `room` positions are left to the answer's end, this one included; `refused` tokens are forbidden too. Where no
    candidate is left: the best of the logits, if the row has them; else a piece of a candidate, the longest that is a
    token and allowed, the candidates in their order; else the first token of the way out.
    """
    if len(refused) > MOST_REFUSED:
        return _of_one_token(row, state.way_out(room), config)

    def may_stand(token: int) -> bool:
        if token in state.reading.vocabulary.ends:
            return state.reading.may_end and token not in refused
        return token not in refused and state.reading.allows(token)

    kept = np.array([may_stand(int(token)) for token in row.topk_ids], np.bool_)
    if row.logits is not None and (config.draws_from_logits or not kept.any()):
        may = _allowed(state, refused)
        if may.any():
            allowed_logits = np.where(may, row.logits, np.float32(-np.inf))
            if not kept.any():
                return _best_of_logits(row, row.logits, allowed_logits, config)
            return RowStatistics(*_sorted(row, kept), row.entropy, allowed_logits)
    if kept.any():
        return RowStatistics(*_sorted(row, kept), row.entropy)
    token = _piece_of_candidate(row, state, may_stand)
    return _of_one_token(row, state.way_out(room) if token is None else token, config)


def _sorted(row: RowStatistics, kept: Bool) -> tuple[Int64, Float32]:
    """Ids and log-probabilities, those `kept` first."""
    order = np.argsort(~kept, kind="stable")
    return row.topk_ids[order], np.where(kept, row.topk_logprobs, np.float32(-np.inf))[order]


def _of_one_token(row: RowStatistics, token: int, config: GenerationConfig) -> RowStatistics:
    """A row with `token` alone, which the model may have named last of all: no more probable than the last it named."""
    logprobs = np.full(row.topk_logprobs.shape, -np.inf, np.float32)
    logprobs[0] = max(row.topk_logprobs.min(), _LEAST)
    logits = None
    if row.logits is not None and config.draws_from_logits:
        logits = np.full(row.logits.shape, -np.inf, np.float32)
        logits[token] = row.logits[token]
    return RowStatistics(np.full(row.topk_ids.shape, token, np.int64), logprobs, row.entropy, logits)


def _allowed(state: GrammarState, refused: Collection[int]) -> Bool:
    """[vocabulary]: what the grammar, ends of text included, and nobody else forbids."""
    may = state.reading.allowed
    may[list(state.reading.vocabulary.ends)] = state.reading.may_end
    may[list(refused)] = False
    return may


def _best_of_logits(
    row: RowStatistics, all_logits: Float32, allowed_logits: Float32, config: GenerationConfig
) -> RowStatistics:
    scaled = all_logits / np.float32(config.logits_temperature)
    best = np.argsort(-allowed_logits, kind="stable")[: len(row.topk_ids)]
    top = scaled.max()
    norm = top + np.log(np.exp(scaled - top).sum())
    logprobs = (allowed_logits[best] / np.float32(config.logits_temperature) - norm).astype(np.float32)
    kept_logits = allowed_logits if config.draws_from_logits else None
    return RowStatistics(best.astype(np.int64), logprobs, row.entropy, kept_logits)


def _piece_of_candidate(row: RowStatistics, state: GrammarState, may_stand: Callable[[int], bool]) -> int | None:
    """The token that the model would write part of: a candidate's text, or without a space in front, cut short."""
    vocabulary = state.reading.vocabulary
    for candidate in row.topk_ids:
        text = vocabulary.texts[int(candidate)]
        for whole in (text, text.removeprefix(b" ")):
            for length in range(len(whole), 0, -1):
                found = vocabulary.ids.get(whole[:length])
                if found is not None and may_stand(found):
                    return found
    return None
