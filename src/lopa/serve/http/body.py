"""The body of a request as an object, read within a size and a time. Knows nothing of what it means."""

import asyncio
from typing import Any

from starlette.requests import Request

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import object_from_json
from lopa.serve.http.api_error import ApiError
from lopa.serve.limits import ServeLimits

_CLOSE = {"Connection": "close"}
"""What the client still sends is not read."""


async def object_from_body(request: Request, limits: ServeLimits) -> dict[str, Any]:
    """Raises ApiError: 400 for what is no JSON object, otherwise as `bytes_from_body`."""
    content = await bytes_from_body(request, limits)
    try:
        return object_from_json(
            content, source="the body", expected="a JSON object", remedy="send one, with Content-Type: application/json"
        )
    except BadInputError as error:
        raise ApiError(400, str(error), code="invalid_json") from error


async def bytes_from_body(request: Request, limits: ServeLimits) -> bytes:
    """Raises ApiError: 408 for a body that takes too long, 413 for one too large."""
    try:
        async with asyncio.timeout(limits.stall_seconds):
            return await _content(request, limits.max_body)
    except TimeoutError:
        raise ApiError(
            408, f"the body is not here after {limits.stall_seconds:g} seconds", code="timeout", headers=_CLOSE
        ) from None


async def _content(request: Request, max: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > max:
        raise _too_large(max)
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max:
            raise _too_large(max)
    return bytes(content)


def _too_large(max: int) -> ApiError:
    return ApiError(413, f"a body of more than {max} bytes", code="body_too_large", headers=_CLOSE)
