"""Waiting for whole answers, as long as there is somebody who waits."""

import asyncio
from typing import Any

from starlette.types import Receive

from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import GenerationResult
from lopa.serve.answering.submission import Handles
from lopa.serve.http.api_error import unavailable
from lopa.serve.http.departure import departure


async def results_of_handles(handles: Handles, receive: Receive) -> list[GenerationResult] | None:
    """The results in order; None when the client has gone, and then every request is cancelled.

    Raises what made one fail, which cancels the others.
    """
    with departure(receive) as gone:
        working = asyncio.create_task(_whole_results(handles))
        try:
            either: list[asyncio.Future[Any]] = [working, gone]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            working.cancel()
            for handle in handles:
                handle.cancel()  # no effect on those that have ended


async def _whole_results(handles: Handles) -> list[GenerationResult]:
    return list(await asyncio.gather(*map(_whole_result, handles)))


async def _whole_result(handle: RequestHandle) -> GenerationResult:
    """Raises ApiError for one that was cut because the server stops."""
    return check_not_cut(await handle)


def check_not_cut(result: GenerationResult) -> GenerationResult:
    """Raise ApiError for an answer that was cancelled while somebody waits for it: the engine was closed."""
    if result.stop_reason == "cancelled":
        raise unavailable("the server stopped before the answer was whole", "not_ready")
    return result
