"""ASGI wrapper that opens a span for each request to an endpoint that answers prompts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.runtime.requests.handle import RequestHandle
from lopa.serve.http.request_log import CLIENT_CLOSED, own_request_id
from lopa.serve.logs import SPAN_IDS
from lopa.serve.openai.body_options import COMPLETIONS, PROMPT_FIELDS
from lopa.serve.tracing.request_trace import begin_trace, end_trace, trace_error

if TYPE_CHECKING:  # it needs the extra `otel`, which a server without traces lacks
    from lopa.serve.tracing.request_spans import RequestSpans

_OPERATIONS = {path: "text_completion" if path == COMPLETIONS else "chat" for path in PROMPT_FIELDS}
"""gen_ai.operation.name by path. Other paths have no spans."""
_DISCONNECTED = "client_disconnected"
"""Reason of a request whose client did not wait for the whole response."""


class TracedApp:
    """ASGI wrapper around `app` that writes the spans of its requests.

    A span ends when the whole response is sent and the engine has ended every choice. A choice that was cancelled ends
    after its current round. OpenTelemetry's own ASGI middleware would export the query and the client's address, and
    answer 500 to some headers that are not text.
    """

    def __init__(self, app: ASGIApp, spans: RequestSpans) -> None:
        self._app, self._spans = app, spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection, and trace its request."""
        operation = _OPERATIONS.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if operation is None:
            end_trace()  # a pipelined request inherits the context of the one before
            SPAN_IDS.set(None)
            await self._app(scope, receive, send)
            return
        trace = begin_trace()
        request = self._spans.start(operation, scope["path"], scope["headers"])
        SPAN_IDS.set(request.ids)
        response = _WatchedResponse(send)
        try:
            await self._app(scope, receive, response.send)
            if not response.complete or response.status == CLIENT_CLOSED:
                trace_error(_DISCONNECTED)
        except BaseException as error:
            trace_error(type(error).__name__)
            raise
        finally:
            try:
                await _wait_until_ended(trace.handles)
            finally:
                self._spans.end(request, trace, response_id=own_request_id(), status=response.status)


class _WatchedResponse:
    """Sender that remembers the status and whether the whole response was sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status: int | None = None
        self.complete = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self.complete = True


async def _wait_until_ended(handles: Sequence[RequestHandle]) -> None:
    for handle in handles:
        if not handle.done:
            with suppress(Exception):  # the span reports it
                await handle
