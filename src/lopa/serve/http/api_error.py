"""Errors as OpenAI's API tells them: a status, and a body with message, type, param and code."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from lopa.runtime.errors import (
    BadInputError,
    EngineClosedError,
    EngineFailedError,
    GrammarHelperError,
    LopaError,
    QueueFullError,
)
from lopa.serve.openai.config import GrammarLackError
from lopa.serve.openai.error_code import ErrorCode
from lopa.serve.openai.field_error import FieldError

RETRY_SECONDS = 1
"""After which a client that was turned away may try again."""


class ApiError(Exception):
    """What a client is told instead of an answer."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        *,
        param: str | None = None,
        code: ErrorCode | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = dict(headers or {})
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    def response(self) -> JSONResponse:
        """The error as an answer of its own."""
        return JSONResponse(self.body, self.status, headers=self.headers)


def api_error_of(error: Exception) -> ApiError:
    """What a client is told of `error`: what is wrong with its request, or that the server cannot."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return overloaded(str(error))
    if isinstance(error, EngineClosedError | EngineFailedError):
        return unavailable(str(error), "engine_failed" if isinstance(error, EngineFailedError) else "not_ready")
    if isinstance(error, GrammarLackError):
        return ApiError(501, str(error), "server_error", code="not_supported")
    if isinstance(error, GrammarHelperError):
        return unavailable("structured output is not available at the moment", "not_ready")
    if isinstance(error, FieldError):
        return ApiError(400, str(error), param=error.param, code=error.code)
    if isinstance(error, BadInputError):
        return ApiError(400, str(error))
    said = str(error) if isinstance(error, LopaError) else f"unexpected {type(error).__name__}: a bug of lopa-export"
    return ApiError(500, said, "server_error", code="internal_error")


def overloaded(message: str) -> ApiError:
    """There is no place for a request."""
    return ApiError(429, message, "rate_limit_error", code="queue_full", headers={"Retry-After": str(RETRY_SECONDS)})


def unavailable(message: str, code: ErrorCode) -> ApiError:
    """Nobody is served now."""
    return ApiError(503, message, "server_error", code=code, headers={"Retry-After": str(RETRY_SECONDS)})
