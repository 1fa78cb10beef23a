"""Choices of non-streamed requests, awaited for as long as the client stays connected."""

import asyncio
from typing import Any

from starlette.types import Receive

from lopa.runtime.requests.result import GenerationResult
from lopa.serve.answering.submission import Handles
from lopa.serve.http.api_error import unavailable
from lopa.serve.http.disconnect import watch_disconnect
from lopa.serve.protocols.choice import Choice, DecodeIds, choice_from_handle


async def await_choices(handles: Handles, decode_ids: DecodeIds, receive: Receive) -> list[Choice] | None:
    """Return the choices in order, or None after the client disconnected, which cancels every request.

    Raises the error of a failed request, which cancels the others.
    """
    with watch_disconnect(receive) as disconnect:
        working = asyncio.create_task(_gather_choices(handles, decode_ids))
        try:
            futures: list[asyncio.Future[Any]] = [working, disconnect]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            working.cancel()
            for handle in handles:
                handle.cancel()  # no effect on ended requests


async def _gather_choices(handles: Handles, decode_ids: DecodeIds) -> list[Choice]:
    for result in await asyncio.gather(*handles):
        check_complete(result)
    return [choice_from_handle(handle, decode_ids) for handle in handles]


def check_complete(result: GenerationResult) -> GenerationResult:
    """Return `result`. Raises ApiError when it was cancelled: the engine closed while the client waited."""
    if result.stop_reason == "cancelled":
        raise unavailable("server stopped before the answer was complete", "not_ready")
    return result
