"""Errors as Triton replies: a code word for programs, a text for people and Triton's own code."""

from dataclasses import dataclass
from typing import Literal

from lopa.runtime.errors import (
    BadInputError,
    EngineClosedError,
    EngineFailedError,
    FieldError,
    GrammarHelperError,
    LopaError,
    QueueFullError,
)
from lopa.serve.openai.body_config import GrammarUnsupportedError

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
    """Return the error reply for `error`. Code words are the same as in the HTTP server (serve/openai/error_code.py),
    otherwise bad_request."""
    if isinstance(error, FieldError):
        return ErrorReply("INVALID_ARG", f"{error.code or 'bad_request'}: {error.param}: {error}")
    for kind, code, word in _REPLIES:
        if isinstance(error, kind):
            return ErrorReply(code, f"{word}: {error}")
    return ErrorReply("INTERNAL", f"internal_error: {type(error).__name__}; please report this bug of lopa-export")


_REPLIES: tuple[tuple[type[Exception], TritonCode, str], ...] = (
    (QueueFullError, "UNAVAILABLE", "queue_full"),
    (EngineClosedError, "UNAVAILABLE", "not_ready"),
    (EngineFailedError, "UNAVAILABLE", "engine_failed"),
    (GrammarUnsupportedError, "UNAVAILABLE", "not_supported"),
    (GrammarHelperError, "UNAVAILABLE", "not_ready"),
    (BadInputError, "INVALID_ARG", "bad_request"),
    (LopaError, "INTERNAL", "internal_error"),
)
"""Error types with code and code word. The first match applies."""
