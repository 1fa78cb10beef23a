"""Relay of an ASGI app's answer: a generator of its messages, and a response that forwards them to the client.

Any transport may carry the lists of messages from one process to the other. This module does not depend on Ray.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.serve.http.api_error import ApiError
from lopa.serve.http.events import watch_disconnect
from lopa.serve.protocols.reply_format import encode_event

Messages = list[dict[str, Any]]
_LOG = logging.getLogger(__name__)
_SCOPE_FIELDS = (
    "type", "asgi", "http_version", "method", "scheme", "query_string", "headers", "client", "server",
)  # fmt: skip
"""Fields of a scope that are plain data."""
_STREAM = b"text/event-stream"
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
        self._head = messages if _is_head_of_complete(message) else []
        if not self._head:
            await self.put(messages)

    async def put(self, messages: Messages | None) -> None:
        if not self._disconnected.is_set():
            await self.outbox.put(messages)

    def disconnect(self) -> None:
        self._disconnected.set()
        with suppress(asyncio.QueueEmpty):  # release a pending put
            self.outbox.get_nowait()


def _is_head_of_complete(message: Message) -> bool:
    """Return whether the body follows at once, so that both can travel together."""
    if message["type"] != "http.response.start":
        return False
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))


class RelayedResponse(Response):
    """Response that forwards an answer, which arrives as lists of messages.

    `error_reply` turns a failure into an error reply: instead of the answer, or as the last event of a stream, without
    [DONE]. A non-streamed answer that has begun is cut off by closing the connection. `on_end` is called exactly once.
    """

    def __init__(
        self,
        answers: AsyncIterator[Messages],
        *,
        error_reply: Callable[[Exception], ApiError],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()
        self._answers, self._error_reply, self._on_end = answers, error_reply, on_end
        self._started = self._streamed = self._complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection."""
        try:
            with watch_disconnect(receive) as disconnect:
                sending = asyncio.create_task(self._send_all(scope, receive, send))
                try:
                    await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
                    if sending.done() or self._complete:
                        await sending
                finally:
                    sending.cancel()
        finally:
            self._on_end()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for messages in self._answers:
                for message in messages:
                    self._track_state(message)
                    await send(message)
        except Exception as error:
            if self._complete:
                return
            api_error = self._error_reply(error)
            if not self._started:
                await api_error.response()(scope, receive, send)
            elif self._streamed:
                await send({"type": "http.response.body", "body": encode_event(api_error.body), "more_body": False})
            else:
                raise

    def _track_state(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started, self._streamed = True, _is_stream(message)
        else:
            self._complete = not message.get("more_body", False)


def _is_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in message.get("headers", ())
    )
