"""Request body as a JSON object, read within limits of size and time. This module does not interpret the fields."""

import asyncio
import codecs
from typing import Any

from starlette.requests import Request

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.serve.http.api_error import ApiError
from lopa.serve.serve_limits import ServeLimits

_CLOSE = {"Connection": "close"}
"""Header that closes the connection, so that the rest of the request is not read."""


async def object_from_body(request: Request, limits: ServeLimits) -> dict[str, Any]:
    """Return the request body as a JSON object. Raises ApiError 400 for anything else, and the errors of
    `bytes_from_body`."""
    content = await bytes_from_body(request, limits)
    try:
        return object_from_json(
            content.removeprefix(codecs.BOM_UTF8),  # as Python's json and most servers do
            source="request body",
            expected="a JSON object",
            remedy="send JSON with Content-Type: application/json",
            unique=True,
        )
    except BadInputError as error:
        raise ApiError(400, str(error), code="invalid_json") from error


async def bytes_from_body(request: Request, limits: ServeLimits) -> bytes:
    """Return the request body. Raises ApiError 408 for a body that takes too long, 413 for one that is too large, and
    415 for one that is compressed."""
    encodings = request.headers.getlist("content-encoding")
    if any(each.strip().lower() not in ("", "identity") for each in encodings):
        raise ApiError(415, "compressed request body; send it without Content-Encoding", code="unsupported_encoding")
    try:
        async with asyncio.timeout(limits.stall_seconds):
            return await _content(request, limits.max_body)
    except TimeoutError:
        raise ApiError(
            408, f"request body not received within {limits.stall_seconds:g} seconds", code="timeout", headers=_CLOSE
        ) from None


async def _content(request: Request, max_bytes: int) -> bytes:
    content_length = request.headers.get("content-length", "0")
    if content_length.isascii() and content_length.isdigit() and int(content_length[:20]) > max_bytes:
        raise _too_large(max_bytes)
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(content)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"request body exceeds {max_bytes} bytes", code="body_too_large", headers=_CLOSE)
