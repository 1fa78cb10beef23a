"""Revise a text: its least probable tokens, or given spans of it, become holes that the model fills again.

A token's probability is that of the text's own token where it is masked and all others but every eighth are given.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Protocol

from lopa.runtime.bundle import Bundle
from lopa.runtime.checked_values import check_float, check_int, shown
from lopa.runtime.contract import TOP_K
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.text.text_with_holes import MAX_HOLES, Hole, Part, TextWithHoles, text_with_holes
from lopa.runtime.text.tokenizer import Tokenizer

JUDGE_OPTIONS: dict[str, Any] = {
    "strategy": "threshold",
    "max_forwards": 1,
    "anytime": True,
    "top_logprobs": TOP_K,
    **{"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "logit_bias": {}},
}
"""Options of the decodes that judge tokens, each with one forward."""
MASKED_AT_ONCE = 8
"""A judging decode masks every token whose number leaves the same remainder by this."""

Span = tuple[int, int]
"""Characters from a start to an exclusive end."""


@dataclass(frozen=True)
class Token:
    """A token of a text."""

    number: int
    """Its ID."""
    span: Span
    """Its characters. Tokens that share a character have equal spans."""


@dataclass(frozen=True)
class Revision:
    """A revised text."""

    text: str
    """The text with its revised spans."""
    spans: tuple[Span, ...]
    """Characters of the given text that were unmasked again; empty if nothing was improbable enough."""
    result: GenerationResult | None
    """Result of the decode, whose `holes` are the new texts of the spans; None without spans."""


class RevisingDecoder(Protocol):
    """The part of a decoder that a revision needs."""

    bundle: Bundle
    tokenizer: Tokenizer

    def generate(self, prompts: Any, config: GenerationConfig | None = None, *, max_num_seqs: int = 1) -> Any:
        """Decode one prompt, or several together."""


def revised(
    decoder: RevisingDecoder,
    text: str,
    config: GenerationConfig,
    *,
    spans: Iterable[Sequence[int]] | None,
    threshold: float | None,
) -> Revision:
    """Return `text` with its `spans`, or its improbable tokens, unmasked again by `config` (Decoder.revise)."""
    if spans is None and threshold is None:
        raise _span_error("neither spans nor a threshold")
    chosen = None if spans is None else checked_spans(spans, text)
    tokens = [Token(number, (start, end)) for number, start, end in decoder.tokenizer.token_spans(text)]
    if threshold is not None:
        threshold = check_float("threshold", threshold, min=0.0, max=1.0)
        chosen = improbable_spans(tokens, _probabilities(decoder, tokens, chosen, config), threshold)
    if not chosen:
        return Revision(text, (), None)
    if config.anytime is None and not config.has_grammar:  # a grammar has not read the last forward's tokens
        config = replace(config, anytime=True)
    result: GenerationResult = decoder.generate(text_with_spans_as_holes(text, chosen, tokens), config)
    assert result.filled_text is not None  # the prompt has holes
    return Revision(result.filled_text, chosen, result)


def _probabilities(
    decoder: RevisingDecoder, tokens: Sequence[Token], spans: Sequence[Span] | None, config: GenerationConfig
) -> dict[int, float]:
    """Return the probability of each token, or of those in `spans`, by index."""
    manifest = decoder.bundle.manifest
    before = decoder.tokenizer.encode("", add_bos=manifest.decoding.add_bos)
    judged = judged_tokens(tokens, spans, has_row_before=bool(before) or not manifest.prediction_shift)
    texts = judged_texts(tokens, judged, before)
    options = GenerationConfig.from_mapping(
        {**JUDGE_OPTIONS, **({} if config.attention is None else {"attention": config.attention})}
    )
    results = decoder.generate(texts, options, max_num_seqs=max(1, len(texts)))
    return token_probabilities(tokens, judged, results)


def checked_spans(spans: Iterable[Sequence[int]], text: str) -> tuple[Span, ...]:
    """Return ascending spans of `text`. Raises BadInputError for empty, overlapping and other spans."""
    found: list[Span] = []
    for span in spans:
        if not isinstance(span, Sequence) or isinstance(span, str) or len(span) != 2:
            raise _span_error(f"span {shown(span)}")
        start = check_int("start of a span", span[0], min=0, max=len(text))
        end = check_int("end of a span", span[1], min=0, max=len(text))
        if start >= end:
            raise _span_error(f"empty span {shown((start, end))}")
        found.append((start, end))
    found.sort()
    for one, other in pairwise(found):
        if one[1] > other[0]:
            raise _span_error(f"overlapping spans {one} and {other}")
    if not found:
        raise _span_error("no spans")
    return tuple(found)


def judged_tokens(tokens: Sequence[Token], spans: Sequence[Span] | None, *, has_row_before: bool) -> list[int]:
    """Return the indices of the tokens to judge: all of them, or those with characters in `spans`.

    Without a row before the first token no row predicts it.
    """
    return [
        index
        for index, token in enumerate(tokens)
        if (index or has_row_before)
        and (spans is None or any(token.span[0] < end and start < token.span[1] for start, end in spans))
    ]


def judged_texts(tokens: Sequence[Token], judged: Sequence[int], before: Sequence[int]) -> list[TextWithHoles]:
    """Return the texts that mask the `judged` tokens, indices into `tokens`, in turn. Each begins with IDs `before`."""
    found = []
    for first in range(min(MASKED_AT_ONCE, len(judged))):
        masked = set(judged[first::MASKED_AT_ONCE])
        parts: list[Part] = []
        given = list(before)
        for index, token in enumerate(tokens):
            if index in masked:
                parts += [tuple(given), Hole(1)] if given else [Hole(1)]
                given = []
            else:
                given.append(token.number)
        found.append(TextWithHoles((*parts, tuple(given)) if given else tuple(parts)))
    return found


def token_probabilities(
    tokens: Sequence[Token], judged: Sequence[int], results: Sequence[GenerationResult]
) -> dict[int, float]:
    """Return the probability of each `judged` token from the results of `judged_texts`, by index.

    A token that is not among the best candidates has probability 0.
    """
    found: dict[int, float] = {}
    for first, result in enumerate(results):
        assert result.top_logprobs is not None
        for index, candidates in zip(judged[first::MASKED_AT_ONCE], result.top_logprobs, strict=True):
            own = [each.logprob for each in candidates if each.token_id == tokens[index].number]
            found[index] = math.exp(own[0]) if own else 0.0
    return found


def improbable_spans(tokens: Sequence[Token], probabilities: dict[int, float], threshold: float) -> tuple[Span, ...]:
    """Return the spans of tokens whose probability is below `threshold`, the least probable ones if there are too many
    for one decode. Spans next to each other are one."""
    ascending = sorted((value, index) for index, value in probabilities.items() if value < threshold)
    chosen: set[int] = set()
    spans: tuple[Span, ...] = ()
    for _, index in ascending:
        chosen.add(index)
        joined = _joined([tokens[each].span for each in sorted(chosen)])
        if len(joined) > MAX_HOLES:
            break
        spans = joined
    return spans


def text_with_spans_as_holes(text: str, spans: Sequence[Span], tokens: Sequence[Token]) -> TextWithHoles:
    """Return `text` with a hole for each of its `spans`, as long as the tokens that write the span."""
    parts: list[str | Hole] = []
    end = 0
    for span in spans:
        count = sum(token.span[0] < span[1] and span[0] < token.span[1] for token in tokens)
        parts += [text[end : span[0]], Hole(max(1, count))]
        end = span[1]
    return text_with_holes([*parts, text[end:]])


def _joined(spans: Sequence[Span]) -> tuple[Span, ...]:
    found: list[Span] = []
    for start, end in spans:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def _span_error(received: str) -> BadInputError:
    return BadInputError(
        received,
        expected="pairs of a start and an exclusive end, in characters of the text, that do not overlap",
        remedy="correct the spans, or pass threshold to find improbable tokens",
    )
