"""Error codes for programs, the same as OpenAI's if OpenAI has one. This module does not depend on HTTP."""

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
    "thread_unsupported_request",
    "timeout",
    "unsupported_encoding",
]
"""`code` of an error. Most errors of a field have no code and name the field as `param`."""
ERROR_CODES: tuple[ErrorCode, ...] = get_args(ErrorCode)
NO_CODE = "bad_request"
"""Reason in metrics and traces of an error without a code."""
