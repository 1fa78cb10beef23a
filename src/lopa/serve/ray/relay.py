"""An ASGI app's answer to one request as a generator of its messages, and the response that sends them on elsewhere.

Between the two lies whatever carries lists of messages from one process to another. Knows no Ray.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.serve.http.api_error import ApiError
from lopa.serve.http.departure import departure
from lopa.serve.http.events import event_of

Messages = list[dict[str, Any]]
_LOG = logging.getLogger(__name__)
_CARRIED = (
    "type", "asgi", "http_version", "method", "scheme", "query_string", "headers", "client", "server",
)  # fmt: skip
"""What of a scope is plain data."""
_STREAM = b"text/event-stream"
_running: set[asyncio.Task[None]] = set()
"""Apps whose reader has gone, until they have seen it."""


def scope_to_carry(scope: Scope) -> dict[str, Any]:
    """`scope` without what belongs to its process, as if the app were at the root of its server."""
    path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
    return {**{name: scope[name] for name in _CARRIED if name in scope}, "path": path or "/"}


async def messages_of_app(app: ASGIApp, scope: Mapping[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
    """What `app` answers to `scope` with `body`: its messages as they come, the head of a whole answer with the answer.

    When the generator is closed the app sees that its client has gone. Raises what the app raised before its answer.
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
        client.leave()


async def _run(app: ASGIApp, scope: dict[str, Any], client: "_Client") -> None:
    try:
        await app(scope, client.receive, client.send)
    except Exception:
        if not client.answered:
            raise
        _LOG.exception("an app failed behind its answer")
    finally:
        await client.put(None)


class _Client:
    """Both ends of a request that an app sees. One message is kept until it is taken: a slow reader slows the app."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._head: Messages = []
        self.outbox: asyncio.Queue[Messages | None] = asyncio.Queue(maxsize=1)
        self.answered = False

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.answered = True
        messages = [*self._head, dict(message)]
        self._head = messages if _is_head_of_whole(message) else []
        if not self._head:
            await self.put(messages)

    async def put(self, messages: Messages | None) -> None:
        if not self._gone.is_set():
            await self.outbox.put(messages)

    def leave(self) -> None:
        self._gone.set()
        with suppress(asyncio.QueueEmpty):  # whoever waits to put one is let go
            self.outbox.get_nowait()


def _is_head_of_whole(message: Message) -> bool:
    """Whether its body follows at once, so that both can travel together."""
    if message["type"] != "http.response.start":
        return False
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))


class RelayedResponse(Response):
    """Sends an answer on that comes as lists of messages.

    What makes it fail on the way is told by `error_of`: instead of the answer, or as the last event of a stream,
    without [DONE]; of a whole answer that has begun the connection is cut. `on_end` is called once, in the end.
    """

    def __init__(
        self,
        answers: AsyncIterator[Messages],
        *,
        error_of: Callable[[Exception], ApiError],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__()
        self._answers, self._error_of, self._on_end = answers, error_of, on_end
        self._begun = self._streamed = self._whole = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        try:
            with departure(receive) as gone:
                sending = asyncio.create_task(self._send_all(scope, receive, send))
                try:
                    await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
                    if sending.done() or self._whole:
                        await sending
                finally:
                    sending.cancel()
        finally:
            self._on_end()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for messages in self._answers:
                for message in messages:
                    self._note(message)
                    await send(message)
        except Exception as error:
            if self._whole:
                return
            told = self._error_of(error)
            if not self._begun:
                await told.response()(scope, receive, send)
            elif self._streamed:
                await send({"type": "http.response.body", "body": event_of(told.body), "more_body": False})
            else:
                raise

    def _note(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._begun, self._streamed = True, _is_stream(message)
        else:
            self._whole = not message.get("more_body", False)


def _is_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(_STREAM) for name, value in message.get("headers", ())
    )
