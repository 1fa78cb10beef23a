"""Relay of an ASGI app's answer: a generator of its messages, and a function that forwards them to the client.

Any transport may carry the lists of messages from one process to the other. This module does not depend on Ray.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.serve.http.api_error import ApiError
from lopa.serve.http.events import EventResponse, watch_disconnect
from lopa.serve.openai.response_shapes import ErrorCode
from lopa.serve.protocols.reply_format import encode_event

Messages = list[dict[str, Any]]
_LOG = logging.getLogger(__name__)
_SCOPE_FIELDS = ["type", "asgi", "http_version", "method", "scheme", "query_string", "headers", "client", "server"]
"""Fields of a scope that are plain data."""
_running: set[asyncio.Task[None]] = set()
"""Tasks of running apps, kept until they have seen that their client disconnected."""


def scope_to_carry(scope: Scope) -> dict[str, Any]:
    """Return `scope` without process-local fields, as if the app were mounted at its server's root path."""
    path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
    return {**{name: scope[name] for name in _SCOPE_FIELDS if name in scope}, "path": path or "/"}


async def relay_messages(app: ASGIApp, scope: Mapping[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
    """Yield the messages with which `app` answers `scope` and `body`. The head of a complete answer comes with its
    body.

    Closing the generator looks like a client disconnect to the app. Raises errors that the app raised before its
    answer.
    """
    client = _Client(body)
    task = asyncio.create_task(_run(app, dict(scope), client))
    _running.add(task)
    task.add_done_callback(_running.discard)
    try:
        while (messages := await client.outbox.get()) is not None:
            yield messages
        await task
    finally:
        client.disconnect()


async def _run(app: ASGIApp, scope: dict[str, Any], client: "_Client") -> None:
    try:
        await app(scope, client.receive, client.send)
    except Exception:
        if not client.has_answered:
            raise
        _LOG.exception("app failed after its answer")
    finally:
        await client.put(None)


class _Client:
    """Receive and send channels of a request. At most one message is buffered, so that a slow reader slows the app."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._disconnected = asyncio.Event()
        self._head: Messages = []
        self.outbox: asyncio.Queue[Messages | None] = asyncio.Queue(maxsize=1)
        self.has_answered = False

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.has_answered = True
        messages = [*self._head, dict(message)]
        is_head = message["type"] == "http.response.start"
        # The body of a complete answer follows at once, so that both can travel together.
        self._head = messages if is_head and "content-length" in Headers(raw=message["headers"]) else []
        if not self._head:
            await self.put(messages)

    async def put(self, messages: Messages | None) -> None:
        if not self._disconnected.is_set():
            await self.outbox.put(messages)

    def disconnect(self) -> None:
        self._disconnected.set()
        with suppress(asyncio.QueueEmpty):  # release a pending put
            self.outbox.get_nowait()


async def relay_answer(
    answers: AsyncIterator[Messages],
    receive: Receive,
    send: Send,
    *,
    error_reply: Callable[[Exception], ApiError],
    on_error: Callable[[ErrorCode | None], None],
) -> None:
    """Forward an answer, which arrives as lists of messages, until it ends or the client disconnects.

    `error_reply` turns a failure into an error: raised before the answer, or the last event of a stream, without
    [DONE]. A non-streamed answer that has begun is cut off by closing the connection. `on_error` receives the code of
    an error that is not raised.
    """
    head: Message = {}
    is_complete = False

    async def send_all() -> None:
        nonlocal head, is_complete
        try:
            async for messages in answers:
                for message in messages:
                    head = head or message
                    is_complete = message is not head and not message.get("more_body", False)
                    await send(message)
        except Exception as error:
            if is_complete:
                return
            api_error = error_reply(error)
            if not head:
                raise api_error from error
            on_error(api_error.code)
            if not Headers(raw=head["headers"]).get("content-type", "").startswith(EventResponse.media_type):
                raise
            await send({"type": "http.response.body", "body": encode_event(api_error.body), "more_body": False})

    with watch_disconnect(receive) as disconnect:
        sending = asyncio.create_task(send_all())
        try:
            await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done() or is_complete:
                await sending
        finally:
            sending.cancel()
