"""Results in the response formats of OpenAI's two endpoints. Fields that OpenAI lacks go into "lopa"."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from lopa.runtime.requests.result import GenerationResult
from lopa.runtime.state.answer_state import StopReason
from lopa.runtime.state.choice_scores import ChoiceScores
from lopa.runtime.strategy import strategy_from_name
from lopa.serve.openai.body_options import CHATS, COMPLETIONS

ErrorCode = Literal[
    "body_too_large",
    "context_length_exceeded",
    "engine_failed",
    "host_not_allowed",
    "internal_error",
    "invalid_api_key",
    "invalid_json",
    "method_not_allowed",
    "model_not_found",
    "not_found",
    "not_ready",
    "not_supported",
    "origin_not_allowed",
    "queue_full",
    "thread_unsupported_request",
    "timeout",
    "unsupported_encoding",
]
"""`code` of an error. Most errors of a field have no code and name the field as `param`."""
ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)
NO_CODE = "bad_request"
"""Reason in metrics and traces of an error without a code."""


DecodeIds = Callable[[list[int]], str]
_FINISH_REASONS: dict[StopReason, str] = {"eos": "stop", "stop_string": "stop", "choice": "stop"}
_LENGTH_LIMIT = "length"
"""Finish reason for every other stop reason."""
FINISH_REASONS = ("stop", _LENGTH_LIMIT, "tool_calls")
_NOT_IN_LOPA = (
    *(
        "prompt_ids",
        "text",
        "token_ids",
        "logprobs",
        "top_logprobs",
        "scores",
        "cached_tokens",
        "params",
        "stop_string",
    ),
)
_OF_HOLES = ("holes", "filled_text")
"""Fields of a text with holes only."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class TokenText:
    """A token's text and its log-probability, None if there is none or it is infinite."""

    text: str
    logprob: float | None

    @property
    def bytes(self) -> list[int] | None:
        """UTF-8 bytes of the text, or None for a token that is only a part of a character."""
        return None if _REPLACEMENT in self.text else list(self.text.encode())


LogprobEntry = tuple[TokenText, Sequence[TokenText]]
"""A token of the answer, and the best candidates of its step, the most probable first."""


@dataclass(frozen=True)
class Shape:
    """Response format of one endpoint."""

    object: str
    chunk: str
    """`object` of a stream part."""
    id: str
    """Prefix of reply IDs."""
    whole: Callable[[str], dict[str, Any]]
    """Function from a text to the text fields of a complete choice."""
    part: Callable[[str], dict[str, Any]]
    """Function from a text to the text fields of a stream part; "" means no text."""
    first: dict[str, Any] | None
    """Fields of the first stream part of a choice, if the endpoint sends one."""
    logprobs: Callable[[Sequence[LogprobEntry], Sequence[int] | None], dict[str, Any]]
    """Function from the tokens, and the offsets of their texts in the answer's."""


def _chat_logprobs(entries: Sequence[LogprobEntry], _: Sequence[int] | None) -> dict[str, Any]:
    def fields_of(token: TokenText) -> dict[str, Any]:
        return {"token": token.text, "logprob": token.logprob, "bytes": token.bytes}

    return {
        "content": [
            {**fields_of(token), "top_logprobs": [*map(fields_of, candidates)]} for token, candidates in entries
        ]
    }


def _completion_logprobs(entries: Sequence[LogprobEntry], offsets: Sequence[int] | None) -> dict[str, Any]:
    """Return the fields of completions. As in OpenAI's API, the candidates include the token itself."""
    tokens = [token for token, _ in entries]
    tops = [
        {each.text: each.logprob for each in reversed((*candidates, token))} if candidates else {}
        for token, candidates in entries
    ]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": offsets,
    }


_WINDOW = 64
"""Maximum number of tokens that are decoded for an offset. Half of them are context."""


def text_offsets(ids: Sequence[int], text: str, decode_ids: DecodeIds) -> list[int]:
    """Return the number of characters of `text` before each of `ids`. Tokens behind its end have its length."""
    offsets: list[int] = []
    start = before = 0
    for end in range(len(ids)):
        found = before + len(decode_ids(list(ids[start:end])).rstrip(_REPLACEMENT))
        offsets.append(min(len(text), found))
        if end - start == _WINDOW:
            start += _WINDOW // 2
            before = found - len(decode_ids(list(ids[start:end])).rstrip(_REPLACEMENT))
    return offsets


SHAPES = {
    CHATS: Shape(
        "chat.completion",
        "chat.completion.chunk",
        "chatcmpl-",
        lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
        lambda text: {"delta": {"content": text} if text else {}},
        {"delta": {"role": "assistant", "content": ""}},
        _chat_logprobs,
    ),
    COMPLETIONS: Shape(
        "text_completion",
        "text_completion",
        "cmpl-",
        lambda text: {"text": text},
        lambda text: {"text": text},
        None,
        _completion_logprobs,
    ),
}


def finish_reason_from_result(result: GenerationResult) -> str:
    """Return OpenAI's finish_reason."""
    return _FINISH_REASONS.get(result.stop_reason, _LENGTH_LIMIT)


def logprobs_from_result(shape: Shape, result: GenerationResult, decode_ids: DecodeIds) -> dict[str, Any] | None:
    """Return the log-probabilities of a choice, or None if they were not requested. Infinite values become null."""
    if result.logprobs is None:
        return None

    def token_text(token_id: int, logprob: float) -> TokenText:
        return TokenText(decode_ids([token_id]), logprob if math.isfinite(logprob) else None)

    candidates = result.top_logprobs or ((),) * len(result.token_ids)
    entries = [
        (token_text(token, logprob), [token_text(*each) for each in best if math.isfinite(each.logprob)])
        for token, logprob, best in zip(result.token_ids, result.logprobs, candidates, strict=True)
    ]
    return shape.logprobs(
        entries, text_offsets(result.token_ids, result.text, decode_ids) if result.holes is None else None
    )


def choice_from_result(shape: Shape, index: int, result: GenerationResult, decode_ids: DecodeIds) -> dict[str, Any]:
    """Return a choice of a non-streamed reply."""
    return {
        "index": index,
        **shape.whole(result.text),
        "logprobs": logprobs_from_result(shape, result, decode_ids),
        "finish_reason": finish_reason_from_result(result),
    }


def usage_from_result(result: GenerationResult) -> dict[str, int]:
    """Return the token counts of a reply with one choice."""
    prompt, answer = len(result.prompt_ids), result.tokens
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def lopa_fields_from_result(result: GenerationResult) -> Mapping[str, Any]:
    """Return the fields of a result that OpenAI's format lacks."""
    found = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    without = _NOT_IN_LOPA if result.holes is not None else (*_NOT_IN_LOPA, *_OF_HOLES)
    fields = {name: value for name, value in found.items() if name not in without}
    if result.params.temperature and result.scores is None:
        fields["top_k"] = 0 if strategy_from_name(result.params.strategy).canvas else result.params.top_k
    return fields if result.scores is None else {**fields, **fields_of_scores(result.scores)}


def fields_of_scores(scores: ChoiceScores) -> dict[str, Any]:
    """Return the probabilities of a request's choices. Infinite log-probabilities become null."""
    return {
        "choices": [
            {
                "index": index,
                "text": each.text,
                "logprob": each.logprob if math.isfinite(each.logprob) else None,
                "probability": each.probability,
                "tokens": len(each.token_ids),
            }
            for index, each in enumerate(scores.choices)
        ],
        "label_mass": scores.label_mass,
        "canvas": scores.canvas,
    }
