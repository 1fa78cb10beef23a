"""Lines of OpenAI's batch files: requests to the server's endpoints, answered as the server answers them."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from lopa.cli.batch.prompt_lines import RawLine
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.errors import BadInputError, FieldError, LopaError
from lopa.runtime.requests.handle import RequestHandle
from lopa.serve.http.api_error import ApiError, api_error_from
from lopa.serve.openai.body_options import LOPA_FIELD, MESSAGES
from lopa.serve.openai.body_requests import body_errors
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.answer_request import renamed_fields
from lopa.serve.protocols.choice import DecodeIds, choice_from_handle
from lopa.serve.protocols.endpoints import ENDPOINTS
from lopa.serve.protocols.messages_reply import anthropic_error
from lopa.serve.protocols.reply_format import ReplyContext, fingerprint_from_manifest
from lopa.serve.serve_limits import ServeLimits

_ID = "batch_req_"
_MARKS = frozenset(("custom_id", "url", "body"))
"""Keys that only lines of OpenAI's format have."""
_KEYS = frozenset(("custom_id", "method", "url", "body"))


def is_openai_line(value: Mapping[str, Any]) -> bool:
    """Return whether an object of a file of prompts has OpenAI's format."""
    return not _MARKS.isdisjoint(value)


def request_from_openai_line(value: Mapping[str, Any], model: str, defaults: Mapping[str, Any]) -> AnswerRequest:
    """Return the request of a line of OpenAI's format, read as the server reads it.

    `model` is the model's name if the line has none, and `defaults` are default options. Raises BadInputError.
    """
    url, body = value.get("url"), value.get("body")
    for name, wrong, expected in (
        ("custom_id", not isinstance(value.get("custom_id"), str), "a text that identifies the answer"),
        ("method", value.get("method", "POST") != "POST", '"POST"'),
        ("url", not isinstance(url, str) or url not in ENDPOINTS, " or ".join(ENDPOINTS)),
        ("body", not isinstance(body, dict), "an object with the request"),
    ):
        if wrong:
            raise BadInputError(f"{name} {str(value.get(name))[:80]}", expected=expected, remedy="correct the line")
    if unknown := sorted(set(value) - _KEYS):
        raise BadInputError(
            f"unknown {', '.join(unknown)[:80]!r}", expected=", ".join(sorted(_KEYS)), remedy="correct or remove it"
        )
    assert isinstance(url, str)
    assert isinstance(body, dict)
    named = body if body.get("model") is not None else {**body, "model": model}
    requested = ENDPOINTS[url].request(named, ServeLimits(), defaults)
    for param, is_given in (
        ("stream", requested.stream is not None),
        (f"{LOPA_FIELD}.deadline", requested.deadline is not None),
    ):
        if is_given:
            raise FieldError(
                param, f"{param} in a file of prompts", expected="no such field", remedy="remove it from the line"
            )
    return requested


@dataclass(frozen=True)
class OpenAIAnswerFormat:
    """The format of the answer to a line of OpenAI's format, valid or not."""

    line: RawLine
    custom_id: Any
    endpoint: Any
    """The line's URL, known or not."""
    manifest: Manifest
    decode_ids: DecodeIds
    requested: AnswerRequest | None = None
    """The request, or None for an invalid line."""

    def from_handles(self, handles: Sequence[RequestHandle]) -> dict[str, Any]:
        """Return a response with status 200 and the body of the server's reply. Raises the request's error."""
        assert self.requested is not None
        fingerprint = fingerprint_from_manifest(self.manifest)
        context = ReplyContext(
            self.requested, self._name, int(time.time()), self.requested.model, fingerprint, self.decode_ids
        )
        reply = ENDPOINTS[self.requested.endpoint].reply(context)
        body = reply.body([choice_from_handle(each, self.decode_ids) for each in handles])
        return self._line_of(200, json.loads(msgspec.json.encode(body)), None)  # it may hold raw JSON of the model

    def from_error(self, error: LopaError) -> dict[str, Any]:
        """Return a response with the status and body of the server's reply to the error."""
        found = self._api_error(error)
        body = found.body if self.endpoint != MESSAGES else anthropic_error(found, f"req_{self._name}")
        return self._line_of(found.status, body, {"code": found.body["error"]["type"], "message": str(error)})

    def _api_error(self, error: LopaError) -> ApiError:
        """Return the error in the line's own field names."""
        if self.requested is None:
            return api_error_from(error)
        try:
            with renamed_fields(self.requested.names), body_errors(self.requested):
                raise error
        except Exception as named:
            return api_error_from(named)

    @property
    def _name(self) -> str:
        return f"{self.line.number}_{self.line.digest}"

    def _line_of(self, status: int, body: dict[str, Any], error: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "id": _ID + self._name,
            "custom_id": self.custom_id if isinstance(self.custom_id, str) else None,
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
