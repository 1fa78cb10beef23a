"""How a result is told in the shapes of OpenAI's two endpoints; what they lack lies in "lopa"."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lopa.runtime.decoding.decoding import StopReason
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.openai.options import CHATS, COMPLETIONS

TextOfIds = Callable[[list[int]], str]
_FINISH: dict[StopReason, str] = {"eos": "stop", "stop_string": "stop"}
_CUT = "length"
"""Every other end."""
FINISH_REASONS = ("stop", _CUT)
_NOT_IN_LOPA = ("prompt_ids", "text", "token_ids", "logprobs", "reused_rows", "plan")


@dataclass(frozen=True)
class Shape:
    """What the answers of one endpoint look like."""

    object: str
    chunk: str
    """The object of a part of a stream."""
    id: str
    """What ids begin with."""
    whole: Callable[[str], dict[str, Any]]
    """The text of a choice."""
    part: Callable[[str], dict[str, Any]]
    """Some of it, "" for none."""
    first: dict[str, Any] | None
    """What a choice of a stream begins with, if it begins with anything."""
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


def finish_of_result(result: GenerationResult) -> str:
    """OpenAI's finish_reason."""
    return _FINISH.get(result.stop_reason, _CUT)


def logprobs_of_result(shape: Shape, result: GenerationResult, text_of_ids: TextOfIds) -> dict[str, Any] | None:
    """The log-probabilities of a choice, None where nobody asked for them; null where there is none."""
    if result.logprobs is None:
        return None
    values = [value if math.isfinite(value) else None for value in result.logprobs]
    return shape.logprobs([text_of_ids([each]) for each in result.token_ids], values)


def choice_of_result(shape: Shape, index: int, result: GenerationResult, text_of_ids: TextOfIds) -> dict[str, Any]:
    """A choice of an answer that is not streamed."""
    return {
        "index": index,
        **shape.whole(result.text),
        "logprobs": logprobs_of_result(shape, result, text_of_ids),
        "finish_reason": finish_of_result(result),
    }


def usage_of_results(results: Sequence[GenerationResult], *, of_prompt: int = 1) -> dict[str, int]:
    """Tokens of all answers, and of the prompts once each, of which every `of_prompt` answers in turn have one."""
    prompts = sum(len(result.prompt_ids) for result in results[::of_prompt])
    answers = sum(result.tokens for result in results)
    return {"prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers}


def ours_of_result(result: GenerationResult) -> Mapping[str, Any]:
    """What a result has beyond OpenAI's fields."""
    found = {each.name: getattr(result, each.name) for each in dataclasses.fields(result)}
    return {name: value for name, value in found.items() if name not in _NOT_IN_LOPA}
