"""uvicorn's reading of requests, within a time and a size: without it a client may begin a request and never end it."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 * 2**10
"""Bytes of a request's first line and headers."""


def protocol_within(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol that hangs up when the head of a request is not there `seconds` after its beginning."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"head_seconds": seconds})


class _BoundedProtocol(HttpToolsProtocol):
    head_seconds: float
    _timer: asyncio.TimerHandle | None = None
    _head = 0
    """Bytes of the head that is being read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if self._timer is None:  # else it runs since the connection was made
            self._begin_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        self._head = 0
        self._timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _end_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        self.transport.close()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MOST_HEAD:
            raise ValueError(f"more than {MOST_HEAD} bytes before the body")  # uvicorn answers 400 and hangs up
