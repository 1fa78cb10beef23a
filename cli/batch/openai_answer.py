"""How a line of OpenAI's batch files is answered: the shapes of its two endpoints, and whose answer one is."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lopa.cli.batch.openai_line import CHATS, COMPLETIONS, endpoint_and_body
from lopa.cli.batch.prompt_lines import RawLine
from lopa.cli.batch.result_lines import fields_of_result
from lopa.runtime.algorithm.decoding import StopReason
from lopa.runtime.errors import BadInputError
from lopa.runtime.requests.result import GenerationResult

_FINISH: dict[StopReason, str] = {"eos": "stop", "stop_string": "stop"}
"""Every other end is "length": the answer was cut."""
_ID = "batch_req_"
_TextOfIds = Callable[[list[int]], str]


@dataclass(frozen=True)
class _Shape:
    """What the answers of one endpoint look like."""

    object: str
    id: str
    choice: Callable[[str], dict[str, Any]]
    logprobs: Callable[[list[str], list[Any]], dict[str, Any]]


_SHAPES = {
    CHATS: _Shape(
        "chat.completion",
        "chatcmpl-",
        lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
        lambda tokens, values: {
            "content": [
                {"token": token, "logprob": value, "bytes": None, "top_logprobs": []}
                for token, value in zip(tokens, values, strict=True)
            ]
        },
    ),
    COMPLETIONS: _Shape(
        "text_completion",
        "cmpl-",
        lambda text: {"text": text},
        lambda tokens, values: {"tokens": tokens, "token_logprobs": values, "top_logprobs": None, "text_offset": None},
    ),
}


@dataclass(frozen=True)
class OpenAIAnswers:
    """How a line of this shape is answered, also one that cannot be used."""

    line: RawLine
    asked: Mapping[str, Any]
    """The line's object."""
    bundle: str
    """The name of the model where the line has none."""
    text_of_ids: _TextOfIds

    def of_result(self, result: GenerationResult) -> dict[str, Any]:
        """A response with status 200; what the result has beyond OpenAI's fields lies in "lopa"."""
        endpoint, body = endpoint_and_body(self.asked)
        shape = _SHAPES[endpoint]
        model = body.get("model")
        choice = {
            "index": 0,
            **shape.choice(result.text),
            "logprobs": self._logprobs(shape, result),
            "finish_reason": _FINISH.get(result.stop_reason, "length"),
        }
        ours = fields_of_result(result, prompt_ids=False)
        answer = {
            "id": shape.id + self._name,
            "object": shape.object,
            "created": int(time.time()),
            "model": model if isinstance(model, str) else self.bundle,
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(result.prompt_ids),
                "completion_tokens": result.tokens,
                "total_tokens": len(result.prompt_ids) + result.tokens,
            },
            "lopa": {name: each for name, each in ours.items() if name not in ("text", "token_ids", "logprobs")},
        }
        return self._line_of(200, answer, None)

    def of_error(self, error: BadInputError) -> dict[str, Any]:
        """A response with status 400, and the same as the line's error."""
        said = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
        return self._line_of(400, {"error": said}, {"code": "invalid_request_error", "message": str(error)})

    @property
    def _name(self) -> str:
        return f"{self.line.number}_{self.line.digest}"

    def _line_of(self, status: int, body: dict[str, Any], error: dict[str, Any] | None) -> dict[str, Any]:
        custom_id = self.asked.get("custom_id")
        return {
            "id": _ID + self._name,
            "custom_id": custom_id if isinstance(custom_id, str) else None,
            "response": {"status_code": status, "request_id": f"req_{self._name}", "body": body},
            "error": error,
        }

    def _logprobs(self, shape: _Shape, result: GenerationResult) -> dict[str, Any] | None:
        values = fields_of_result(result, prompt_ids=False).get("logprobs")
        if values is None:
            return None
        return shape.logprobs([self.text_of_ids([each]) for each in result.token_ids], values)


def identity_of_openai_answer(value: Mapping[str, Any]) -> tuple[int, str] | None:
    """The number and the digest of the line that an answer of this shape is for; None for anything else."""
    name = value.get("id")
    if not isinstance(name, str) or not name.startswith(_ID) or "custom_id" not in value:
        return None
    number, _, digest = name.removeprefix(_ID).partition("_")
    return (int(number), digest) if number.isascii() and number.isdigit() and len(number) < 19 else None
