"""What a client is told of an error: a word that programs read, words for people, and Triton's code."""

from dataclasses import dataclass
from typing import Literal

from lopa.runtime.errors import (
    BadInputError,
    EngineClosedError,
    EngineFailedError,
    GrammarHelperError,
    LopaError,
    QueueFullError,
)
from lopa.serve.openai.config import GrammarLackError
from lopa.serve.openai.field_error import FieldError

TritonCode = Literal["INVALID_ARG", "UNAVAILABLE", "CANCELLED", "INTERNAL"]
"""Of TritonError."""


@dataclass(frozen=True)
class Told:
    """Triton 2.51 answers HTTP with 400 whatever the code: so the text begins with a word."""

    code: TritonCode
    text: str


STOPPED = Told("UNAVAILABLE", "not_ready: the model was unloaded before the answer was whole")
CANCELLED = Told("CANCELLED", "cancelled: the client cancelled the request")


def told_of_error(error: Exception) -> Told:
    """The words are those of the HTTP server (serve/openai/error_code.py); bad_request where it has none."""
    if isinstance(error, FieldError):
        return Told("INVALID_ARG", f"{error.code or 'bad_request'}: {error.param}: {error}")
    for kind, code, word in _KINDS:
        if isinstance(error, kind):
            return Told(code, f"{word}: {error}")
    return Told("INTERNAL", f"internal_error: unexpected {type(error).__name__}: a bug of lopa-export")


_KINDS: tuple[tuple[type[Exception], TritonCode, str], ...] = (
    (QueueFullError, "UNAVAILABLE", "queue_full"),
    (EngineClosedError, "UNAVAILABLE", "not_ready"),
    (EngineFailedError, "UNAVAILABLE", "engine_failed"),
    (GrammarLackError, "UNAVAILABLE", "not_supported"),
    (GrammarHelperError, "UNAVAILABLE", "not_ready"),
    (BadInputError, "INVALID_ARG", "bad_request"),
    (LopaError, "INTERNAL", "internal_error"),
)
"""The first that fits counts."""
