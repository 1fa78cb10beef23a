"""One reply to a request, in the form of its protocol, and its choices, awaited while the client stays connected."""

import asyncio
import logging
import time
from typing import Any

from starlette.types import Receive

from lopa.runtime.requests.result import GenerationResult
from lopa.serve.answering.service import Service
from lopa.serve.answering.submission import Handles
from lopa.serve.http.api_error import ApiError, logged_api_error, unavailable
from lopa.serve.http.events import watch_disconnect
from lopa.serve.http.request_log import HEADER, request_number, set_request_id
from lopa.serve.openai.request import AnswerRequest
from lopa.serve.protocols.choice import Choice, DecodeIds, choice_from_handle
from lopa.serve.protocols.endpoints import ENDPOINTS
from lopa.serve.protocols.reply_format import ReplyContext
from lopa.serve.tracing.request_trace import trace_error, trace_finish

_LOG = logging.getLogger(__name__)


class Reply:
    """Reply to one request body, with one or more choices."""

    def __init__(self, service: Service, requested: AnswerRequest) -> None:
        self.service, self.requested = service, requested
        context = ReplyContext(
            requested, request_number(), int(time.time()), service.name, service.fingerprint, service.decode_ids
        )
        self.format = ENDPOINTS[requested.endpoint].reply(context)

    @property
    def headers(self) -> dict[str, str]:
        """Response headers with the request ID, which clients quote in support requests."""
        return {HEADER: set_request_id(self.format.id)}

    def count(self, choice: Choice) -> None:
        """Count one complete choice in the metrics and the trace."""
        self.service.metrics.answered(self.requested.endpoint, choice.finish_reason)
        trace_finish(choice.result, choice.finish_reason, reasoning_tokens=choice.reasoning_tokens)

    def count_error(self, error: Exception) -> ApiError:
        """Log and count the error that ends the stream of this reply. Return it for the client."""
        api_error = logged_api_error(error)
        _LOG.info(
            "%s: stream ended by error %s: %r %s", self.format.id, api_error.reason, str(api_error), api_error.operator
        )
        self.service.metrics.rejected(api_error.code)
        trace_error(api_error.reason)
        return api_error


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
