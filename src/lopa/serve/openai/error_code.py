"""What went wrong, in a word that programs read: OpenAI's words where it has some. Knows no HTTP."""

from typing import Literal, get_args

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
    "timeout",
]
"""The `code` of an error; one without is a field that cannot be used, and `param` is its name."""
ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)
