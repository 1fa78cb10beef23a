"""Answers to lines of OpenAI's batch files: their format, and the line that an answer belongs to."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lopa.cli.batch.openai_line import endpoint_and_body
from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.errors import BadInputError, PromptTooLongError
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.openai.body_options import PROMPT_FIELDS, options_from_body
from lopa.serve.openai.field_error import FieldError
from lopa.serve.openai.prompt_error import LENGTH, field_error_from_prompt_error
from lopa.serve.openai.response_shapes import (
    SHAPES,
    DecodeIds,
    choice_from_result,
    lopa_fields_from_result,
    usage_from_result,
)

_ID = "batch_req_"


@dataclass(frozen=True)
class OpenAIAnswerFormat:
    """The format of the answer to a line of OpenAI's format, valid or not."""

    line: RawLine
    request: Mapping[str, Any]
    """The line's object."""
    bundle: str
    """Name of the bundle, used as the model's name if the line has none."""
    decode_ids: DecodeIds

    def from_result(self, result: GenerationResult) -> dict[str, Any]:
        """Return a response with status 200. Fields beyond OpenAI's are in "lopa"."""
        endpoint, body = endpoint_and_body(self.request)
        shape = SHAPES[endpoint]
        model = body.get("model")
        answer = {
            "id": shape.id + self._name,
            "object": shape.object,
            "created": int(time.time()),
            "model": model if isinstance(model, str) else self.bundle,
            "choices": [choice_from_result(shape, 0, result, self.decode_ids)],
            "usage": usage_from_result(result),
            "lopa": lopa_fields_from_result(result),
        }
        return self._line_of(200, answer, None)

    def from_error(self, error: BadInputError) -> dict[str, Any]:
        """Return a response with status 400, with the same message as the line's error."""
        if isinstance(error, PromptTooLongError):
            endpoint, body = endpoint_and_body(self.request)
            params = options_from_body(body, endpoint).params
            error = field_error_from_prompt_error(error, PROMPT_FIELDS[endpoint], params.get(LENGTH, LENGTH))
        param, code = (error.param, error.code) if isinstance(error, FieldError) else (None, None)
        described = {"message": str(error), "type": "invalid_request_error", "param": param, "code": code}
        return self._line_of(400, {"error": described}, {"code": "invalid_request_error", "message": str(error)})

    @property
    def _name(self) -> str:
        return f"{self.line.number}_{self.line.digest}"

    def _line_of(self, status: int, body: dict[str, Any], error: dict[str, Any] | None) -> dict[str, Any]:
        custom_id = self.request.get("custom_id")
        return {
            "id": _ID + self._name,
            "custom_id": custom_id if isinstance(custom_id, str) else None,
            "response": {"status_code": status, "request_id": f"req_{self._name}", "body": body},
            "error": error,
        }


def identity_of_openai_answer(value: Mapping[str, Any]) -> tuple[int, str] | None:
    """Return number and digest of the line that `value` answers; None for an object in another format."""
    name = value.get("id")
    if not isinstance(name, str) or not name.startswith(_ID) or "custom_id" not in value:
        return None
    number, _, digest = name.removeprefix(_ID).partition("_")
    return (int(number), digest) if number.isascii() and number.isdigit() and len(number) < 19 else None
