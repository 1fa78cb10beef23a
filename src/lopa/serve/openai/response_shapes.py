"""Results in the response formats of OpenAI's two endpoints. Fields that OpenAI lacks go into "lopa"."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lopa.runtime.decoding.decoding import StopReason
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.openai.body_options import CHATS, COMPLETIONS

DecodeIds = Callable[[list[int]], str]
_FINISH_REASONS: dict[StopReason, str] = {"eos": "stop", "stop_string": "stop"}
_LENGTH_LIMIT = "length"
"""Finish reason for every other stop reason."""
FINISH_REASONS = ("stop", _LENGTH_LIMIT)
_NOT_IN_LOPA = ("prompt_ids", "text", "token_ids", "logprobs", "reused_rows", "plan")


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
    logprobs: Callable[[list[str], list[Any]], dict[str, Any]]


SHAPES = {
    CHATS: Shape(
        "chat.completion",
        "chat.completion.chunk",
        "chatcmpl-",
        lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
        lambda text: {"delta": {"content": text} if text else {}},
        {"delta": {"role": "assistant", "content": ""}},
        lambda tokens, values: {
            "content": [
                {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(tokens, values, strict=True)
            ]
        },
    ),
    COMPLETIONS: Shape(
        "text_completion",
        "text_completion",
        "cmpl-",
        lambda text: {"text": text},
        lambda text: {"text": text},
        None,
        lambda tokens, values: {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": None},
    ),
}


def finish_reason_from_result(result: GenerationResult) -> str:
    """Return OpenAI's finish_reason."""
    return _FINISH_REASONS.get(result.stop_reason, _LENGTH_LIMIT)


def logprobs_from_result(shape: Shape, result: GenerationResult, decode_ids: DecodeIds) -> dict[str, Any] | None:
    """Return the log-probabilities of a choice, or None if they were not requested. Infinite values become null."""
    if result.logprobs is None:
        return None
    values = [value if math.isfinite(value) else None for value in result.logprobs]
    return shape.logprobs([decode_ids([each]) for each in result.token_ids], values)


def choice_from_result(shape: Shape, index: int, result: GenerationResult, decode_ids: DecodeIds) -> dict[str, Any]:
    """Return a choice of a non-streamed reply."""
    return {
        "index": index,
        **shape.whole(result.text),
        "logprobs": logprobs_from_result(shape, result, decode_ids),
        "finish_reason": finish_reason_from_result(result),
    }


def usage_from_results(results: Sequence[GenerationResult], *, of_prompt: int = 1) -> dict[str, int]:
    """Return the token counts of a reply. Every `of_prompt` consecutive results share a prompt, which counts once."""
    prompts = sum(len(result.prompt_ids) for result in results[::of_prompt])
    answers = sum(result.tokens for result in results)
    return {"prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers}


def lopa_fields_from_result(result: GenerationResult) -> Mapping[str, Any]:
    """Return the fields of a result that OpenAI's format lacks."""
    found = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    return {name: value for name, value in found.items() if name not in _NOT_IN_LOPA}
