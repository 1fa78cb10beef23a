"""uvicorn's reading and writing within times and sizes: a client may not keep a connection that it does not use."""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lopa.serve.http.departure import HALF_CLOSED
from lopa.serve.http.transport import OrderlyTransport

_LOG = logging.getLogger(__name__)

MAX_HEAD = 64 * 2**10
"""Bytes of a request's first line and headers."""
MAX_REST = 256 * 2**20
"""Bytes of a body that are read and dropped after the answer, so that a client that sends first and reads then hears
it."""
_INVALID = "Invalid HTTP request received."
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_PROBE = 0.5
"""Seconds after a client closed its sending half in which most answers are there, and no probe is needed."""
_LOOK_SECONDS = 0.25


def protocol_within(seconds: float, on_invalid: Callable[[], None]) -> type[HttpToolsProtocol]:
    """Return a protocol that hangs up when the head of a request is not there `seconds` after its beginning, when what
    is left of a request is not there so long after its answer, and when the client takes nothing of an answer for so
    long. It calls `on_invalid` for each connection that sends what is not HTTP."""
    members = {"seconds": seconds, "on_invalid": staticmethod(on_invalid)}
    return type("BoundedProtocol", (_BoundedProtocol,), members)


class _BoundedProtocol(HttpToolsProtocol):
    seconds: float
    on_invalid: Callable[[], None]
    transport: OrderlyTransport
    _running: RequestResponseCycle | None = None
    """The request that the app answers, or answered last. uvicorn's `cycle` is the newest one, which may wait."""
    _is_last_known = False
    """True once no further request is read: input behind the last one is dropped."""
    _half_closed: asyncio.Event
    """Set when the client has closed its sending half and still waits for answers, as far as one can know."""
    _watching: asyncio.TimerHandle | None = None
    """The next look at a client that has closed its sending half."""
    _probe_at = 0.0
    """The loop's time from which on such a client is probed."""
    _probe_interval = _FIRST_PROBE
    _reading: asyncio.TimerHandle | None = None
    """Ends the reading of a head, or of what is left of a body after its answer."""
    _writing: asyncio.TimerHandle | None = None
    _in_body = False
    _head = 0
    """Bytes of the head that is being read."""
    _rest = 0
    """Bytes of the request that came after its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._half_closed = asyncio.Event()
        super().connection_made(OrderlyTransport(transport, self.seconds))
        self._begin_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport.ended()
        self._end_reading()
        if self._watching is not None:
            self._watching.cancel()
        self.resume_writing()
        running = self._running
        if running is not None and not running.response_complete:  # uvicorn tells the newest request only
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_last_known:
            self._drop(len(data))
            return
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as request:
                # This server upgrades to nothing and ignores the header, as RFC 9110 allows; but the parser stops here.
                data = data[request.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's own
                continue
            except httptools.HttpParserError as error:
                self._refuse(error)
            return

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it: True keeps the transport open
        """Keep the connection open while whole requests are unanswered.

        A client that called close() sends the same end as one that called shutdown(SHUT_WR). The system answers
        the next bytes for the first one with a reset, so `_watch` sends some.
        """
        last = None if self.transport.is_closing() else self._end_of_requests()
        if last is None:
            return False
        self.transport.unread = False
        if not self._half_closed.is_set():
            self._half_closed.set()
            self._probe_at = self.loop.time() + self._probe_interval
            self._watching = self.loop.call_later(_LOOK_SECONDS, self._watch)
        return True

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(self.seconds, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

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
        self.scope["extensions"] = {HALF_CLOSED: self._half_closed}  # type: ignore[dict-item]  # of this server alone

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._end_reading()
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("CONNECT, and this server is no proxy")
        self.url = _target_with_path(self.url)
        super().on_headers_complete()
        self._in_body = True
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _refuse(self, error: Exception) -> None:
        """Answer 400 to what is not HTTP, or nothing where it would not be the next answer: in the midst of another,
        or behind one, it would be taken for what it is not. Requests that came before are answered first."""
        _LOG.warning("%s %s: %s", _INVALID, _address(self.client), error.__context__ or error)
        self.on_invalid()
        if self._end_of_requests() is not None:
            return
        if self._in_body and self.cycle.response_started:
            self.transport.hang_up()
        else:
            self.send_400_response(_INVALID)

    def _end_of_requests(self) -> RequestResponseCycle | None:
        """Read no further request. Return the last whole one that is not answered; the connection ends behind it."""
        if self._in_body and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()  # its body will never be whole, and nobody has begun to answer it
        elif self._in_body:
            return None
        last = self.pipeline[0][0] if self.pipeline else self._running
        if last is None or last.response_complete:
            return None
        self._is_last_known, self._in_body = True, False
        last.keep_alive = False
        self.cycle = last
        self._end_reading()
        return last

    def _watch(self) -> None:
        """Look after a client that has closed its sending half: has it left altogether?"""
        self._watching = None
        running = self._running
        if self.transport.is_closing() or running is None:
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()  # connection_lost follows, and cancels what runs
            return
        if self.loop.time() >= self._probe_at and not running.response_started:  # a stream probes by itself
            if running.scope["http_version"] == "1.0":  # knows no interim answers: most who end their half have left
                self.transport.hang_up()
                return
            self.transport.write(_CONTINUE)
            self._probe_interval = min(2 * self._probe_interval, self.seconds)
            self._probe_at = self.loop.time() + self._probe_interval
        self._watching = self.loop.call_later(_LOOK_SECONDS, self._watch)

    def _begin_reading(self) -> None:
        self._reading = self.loop.call_later(self.seconds, self._give_up)

    def _end_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _give_up(self) -> None:
        self._reading = None
        if self._end_of_requests() is None:
            self.transport.hang_up()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MAX_HEAD:
            raise ValueError(f"more than {MAX_HEAD} bytes before the body")  # uvicorn answers 400 and hangs up

    def _drop(self, size: int) -> None:
        self._rest += size
        if self._rest > MAX_REST:
            self.transport.hang_up()


def _target_with_path(target: bytes) -> bytes:
    """A request's target as uvicorn can read it. Raises ValueError for one that names nothing on a server."""
    try:
        parsed = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is not None and parsed.path is not None:
        return target
    if parsed is None or parsed.schema not in (b"http", b"https"):
        raise ValueError("a target without a path")
    return b"/" if parsed.query is None else b"/?" + parsed.query  # http://host is the root of the host


def _address(client: tuple[str, int] | None) -> str:
    return "unknown" if client is None else f"{client[0]}:{client[1]}"
