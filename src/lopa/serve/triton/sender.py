"""Sender of a request's responses, and errors as Triton replies: a code word for programs, a text for people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.serve.http.api_error import api_error_from
from lopa.serve.openai.body_options import COMPLETIONS
from lopa.serve.openai.response_shapes import (
    SHAPES,
    DecodeIds,
    finish_reason_from_result,
    logprobs_from_result,
    lopa_fields_from_result,
    usage_from_result,
)
from lopa.serve.triton.config_text import DRAFT, FINISH, LOGPROBS, OUTPUT, OUTPUTS, USAGE

TritonCode = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]
"""Codes of TritonError."""


@dataclass(frozen=True)
class ErrorReply:
    """Error reply to a client. Its text begins with a code word, since Triton 2.51 answers HTTP 400 for every code."""

    code: TritonCode
    text: str


STOPPED = ErrorReply("UNAVAILABLE", "not_ready: the model was unloaded before the answer was complete")
CANCELLED = ErrorReply("CANCELLED", "cancelled: the client cancelled the request")


def error_reply_from_error(error: Exception) -> ErrorReply:
    """Return the error reply for `error`. Code words and texts are the same as in the HTTP server."""
    found = api_error_from(error)
    code: TritonCode = "INTERNAL" if found.status == 500 else "INVALID_ARG" if found.status == 400 else "UNAVAILABLE"
    param = found.body["error"]["param"]
    return ErrorReply(code, f"{found.reason}: {f'{param}: ' if param else ''}{found}")


class Sender:
    """Sender of any number of parts, followed by exactly one end or error."""

    def __init__(self, responses: Any, backend: Any) -> None:
        """Store a request's response sender and triton_python_backend_utils."""
        self._responses, self._backend = responses, backend

    def send(self, outputs: Mapping[str, str]) -> None:
        """Send a part."""
        self._responses.send(self._response(outputs))

    def end(self, outputs: Mapping[str, str]) -> None:
        """Send the last part."""
        self._responses.send(self._response(outputs), flags=self._last)

    def fail(self, reply: ErrorReply) -> None:
        """Send an error instead of the last part."""
        error = self._backend.TritonError(reply.text, getattr(self._backend.TritonError, reply.code))
        self._responses.send(self._backend.InferenceResponse(error=error), flags=self._last)

    @property
    def cancelled(self) -> bool:
        """True if Triton reports that the client has cancelled the request. It asks Triton each time."""
        return bool(self._responses.is_cancelled())

    @property
    def _last(self) -> int:
        return int(self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _response(self, outputs: Mapping[str, str]) -> Any:
        tensors = [self._backend.Tensor(name, np.array([text.encode()], object)) for name, text in outputs.items()]
        return self._backend.InferenceResponse(tensors)


Outputs = Mapping[str, str]


def outputs_from_events(events: Sequence[Event], decode_ids: DecodeIds) -> Outputs:
    """Return the outputs of a stream part: new committed text, the newest draft, and at the end how it ended."""
    last = events[-1]
    return {
        **dict.fromkeys(OUTPUTS, ""),
        OUTPUT: "".join(event.text for event in events if isinstance(event, TextEvent)),
        DRAFT: next((event.text for event in reversed(events) if isinstance(event, DraftEvent)), ""),
        **(_end(last.result, decode_ids) if isinstance(last, DoneEvent) else {}),
    }


def outputs_from_result(result: GenerationResult, decode_ids: DecodeIds) -> Outputs:
    """Return the outputs of a complete answer."""
    return {**dict.fromkeys(OUTPUTS, ""), OUTPUT: result.text, **_end(result, decode_ids)}


def _end(result: GenerationResult, decode_ids: DecodeIds) -> Outputs:
    usage = {**usage_from_result(result), "lopa": lopa_fields_from_result(result)}
    logprobs = logprobs_from_result(SHAPES[COMPLETIONS], result, decode_ids)
    return {
        FINISH: finish_reason_from_result(result),
        USAGE: json.dumps(usage),
        **({} if logprobs is None else {LOGPROBS: json.dumps(logprobs)}),
    }
