"""uvicorn's reading and writing within times and sizes: a client may not keep a connection that it does not use."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lopa.serve.http.transport import OrderlyTransport

MOST_HEAD = 64 * 2**10
"""Bytes of a request's first line and headers."""
MOST_REST = 256 * 2**20
"""Bytes of a body that are read and dropped after the answer, so that a client that sends first and reads then hears
it."""


def protocol_within(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol that hangs up when the head of a request is not there `seconds` after its beginning, when what is left
    of a request is not there so long after its answer, and when the client takes nothing of an answer for so long."""
    return type("BoundedProtocol", (_BoundedProtocol,), {"seconds": seconds})


class _BoundedProtocol(HttpToolsProtocol):
    seconds: float
    transport: OrderlyTransport
    _reading: asyncio.TimerHandle | None = None
    """Ends the reading of a head, or of what is left of a body after its answer."""
    _writing: asyncio.TimerHandle | None = None
    _in_body = False
    _head = 0
    """Bytes of the head that is being read."""
    _rest = 0
    """Bytes of the request that came after its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(OrderlyTransport(transport, self.seconds))
        self._begin_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.ended()
        self._end_reading()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            self._drop(len(data))
        else:
            super().data_received(data)

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(self.seconds, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Only where it is the next answer: in the midst of another, or behind one, it would be taken for what it is
        not."""
        if self._in_body:
            is_next = not self.cycle.response_started and not self.pipeline
        else:
            is_next = self.cycle is None or self.cycle.response_complete
        if is_next:
            super().send_400_response(msg)
        else:
            self.transport.hang_up()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.transport.hang_up()

    def on_message_begin(self) -> None:
        self.transport.unread = True
        self._head = self._rest = 0
        self._unset_keepalive_if_required()  # set where this came in one piece with the rest of the last request
        if self._reading is None:  # else it runs since the connection was made
            self._begin_reading()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_reading()
        self._in_body = True
        super().on_headers_complete()
        if self.expect_100_continue:  # it may keep its body to itself, and then nobody knows what comes next
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._drop(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.transport.unread = self._in_body = False
        if self._reading is not None:  # the rest is read: the next request may come
            self._end_reading()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.unread and self.cycle.response_complete and not self.transport.is_closing():
            self._begin_reading()

    def _begin_reading(self) -> None:
        self._reading = self.loop.call_later(self.seconds, self._give_up)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _give_up(self) -> None:
        self._reading = None
        self.transport.hang_up()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MOST_HEAD:
            raise ValueError(f"more than {MOST_HEAD} bytes before the body")  # uvicorn answers 400 and hangs up

    def _drop(self, size: int) -> None:
        self._rest += size
        if self._rest > MOST_REST:
            self.transport.hang_up()
