"""A response that streams server-sent events to slow clients and detects disconnects."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HALF_CLOSED = "half_closed"
"""Scope extension with an asyncio.Event that is set when the client closes its sending half.

The client may also have disconnected completely. Only sending more bytes shows whether it has.
"""


@contextmanager
def watch_disconnect(receive: Receive) -> "Iterator[asyncio.Task[None]]":
    """Yield a task that ends when the client disconnects. The request body must have been read before."""
    watch = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        yield watch
    finally:
        watch.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_LOG = logging.getLogger(__name__)
KEEP_ALIVE = b": keep-alive\n\n"
"""Comment line that clients ignore."""


class EventResponse(Response):
    """Response that streams events as they arrive. `on_end` is called exactly once, however the stream ends."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        on_end: Callable[[], None],
        stall_seconds: float,
        headers: dict[str, str],
    ) -> None:
        """Store the events. The stream ends when a client does not accept a part within `stall_seconds`."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._events, self._on_end, self._stall_seconds = events, on_end, stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the whole stream."""
        try:
            with watch_disconnect(receive) as disconnect:
                sending = asyncio.create_task(self._send_all(send, (scope.get("extensions") or {}).get(HALF_CLOSED)))
                try:
                    await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
                    if sending.done():
                        await sending
                except TimeoutError:
                    _LOG.info("stream closed: client read nothing for %g seconds", self._stall_seconds)
                finally:
                    sending.cancel()
        finally:
            self._on_end()

    async def _send_all(self, send: Send, half_closed: asyncio.Event | None) -> None:
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        probing = None if half_closed is None else asyncio.create_task(self._probe(send, half_closed))
        try:
            async for event in self._events:
                await self._send(send, _body_message(event))
        finally:
            if probing is not None:
                probing.cancel()
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _probe(self, send: Send, half_closed: asyncio.Event) -> None:
        """Send a comment as soon as the client may have left, instead of waiting for the next event."""
        await half_closed.wait()
        with suppress(TimeoutError):
            await self._send(send, _body_message(KEEP_ALIVE))

    async def _send(self, send: Send, message: dict[str, Any]) -> None:
        async with asyncio.timeout(self._stall_seconds):
            await send(message)


def _body_message(content: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": content, "more_body": True}
