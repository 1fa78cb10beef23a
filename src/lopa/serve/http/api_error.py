"""Errors in the form of OpenAI's API: a status, and a body with message, type, param and code."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from lopa.runtime.errors import (
    BadInputError,
    EngineClosedError,
    EngineFailedError,
    FieldError,
    GrammarHelperError,
    LopaError,
    NonFiniteAnswerError,
    QueueFullError,
    ResourceExhaustedError,
)
from lopa.serve.openai.body_requests import GrammarUnsupportedError
from lopa.serve.openai.response_shapes import NO_CODE, ErrorCode

if TYPE_CHECKING:
    from starlette.responses import JSONResponse

_LOG = logging.getLogger(__name__)
RETRY_SECONDS = 1
"""Seconds after which a rejected client may retry."""


class ApiError(Exception):
    """Error reply to a client, raised anywhere while its request is handled. `operator` is for the log."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: ErrorCode | None = None,
        operator: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.operator = operator
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @property
    def reason(self) -> str:
        """Code of the error, or `bad_request` without one."""
        return self.code or NO_CODE

    def response(self) -> "JSONResponse":
        """Return the error as an HTTP response."""
        from starlette.responses import JSONResponse  # files of prompts have such errors without the extra `serve`

        return JSONResponse(self.body, self.status, headers=self.headers)


def api_error_from(error: Exception) -> ApiError:
    """Return the error reply for `error`: a 4xx status for a bad request, 5xx for a failure of the server."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return overloaded(f"{error.received}, {error.expected}; retry later")
    if isinstance(error, EngineClosedError | EngineFailedError):
        has_failed = isinstance(error, EngineFailedError) or error.__cause__ is not None
        received = FAILED if has_failed else STOPPING
        return unavailable(received, "engine_failed" if has_failed else "not_ready", operator=str(error))
    if isinstance(error, ResourceExhaustedError | MemoryError):
        received = "the server has no memory, files or threads left; retry later"
        return unavailable(received, "not_ready", operator=str(error))
    if isinstance(error, GrammarUnsupportedError):
        return ApiError(501, str(error), "server_error", code="not_supported")
    if isinstance(error, GrammarHelperError):
        received = "structured output is temporarily unavailable; retry later"
        return unavailable(received, "not_ready", operator=str(error))
    if isinstance(error, BadInputError) and not isinstance(error, NonFiniteAnswerError):
        param, code = (error.param, error.code) if isinstance(error, FieldError) else (None, None)
        code = cast(ErrorCode | None, code)
        return ApiError(400, error.client_text, param=param, code=code, operator=error.operator)
    message = (
        f"the request failed ({type(error).__name__}); the server's log has the reason"
        if isinstance(error, LopaError)
        else f"internal error ({type(error).__name__}); please report this bug of lopa-export"
    )
    return ApiError(500, message, "server_error", code="internal_error", operator=str(error))


def logged_api_error(error: Exception) -> ApiError:
    """Return the error reply for `error`, and log a failure of the server with its traceback."""
    found = api_error_from(error)
    if found.status == 500:
        _LOG.error("request failed", exc_info=error)
    return found


FAILED = "a device of this server failed; its log has the reason"
"""Message of replies after a failure of the engine."""
STOPPING = "server is shutting down and accepts no new requests"


def overloaded(message: str) -> ApiError:
    """Return the 429 reply of a full queue."""
    return ApiError(429, message, "rate_limit_error", code="queue_full", headers={"Retry-After": str(RETRY_SECONDS)})


def unavailable(message: str, code: ErrorCode, *, operator: str = "") -> ApiError:
    """Return a 503 reply with Retry-After."""
    headers = {"Retry-After": str(RETRY_SECONDS)}
    return ApiError(503, message, "server_error", code=code, headers=headers, operator=operator)
