"""uvicorn's HTTP protocol with limits of time and size, so that no client can occupy an idle connection."""

import asyncio
import logging
import math
import socket
from collections.abc import Callable
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lopa.serve.http.events import HALF_CLOSED
from lopa.serve.http.open_connections import OpenConnections
from lopa.serve.http.transport import GracefulTransport

_LOG = logging.getLogger(__name__)

MAX_HEAD = 64 * 2**10
"""Maximum bytes of a request's first line and headers."""
MAX_REST = 256 * 2**20
"""Maximum bytes of a body that are read and dropped after the answer. This way, a client that sends its complete
request before it reads still receives its answer.
"""
_INVALID = "Invalid HTTP request received."
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FIRST_PROBE = 0.5
"""Seconds between a client's half-close and the first probe. Most answers are complete by then."""
_POLL_SECONDS = 0.25
_UNBOUNDED: Any = math.inf
"""Length of a stream. uvicorn subtracts the bytes that it sends."""


def protocol_with_timeouts(
    seconds: float, on_invalid: Callable[[], None], opened: OpenConnections
) -> type[HttpToolsProtocol]:
    """Return a protocol class that closes stalled connections, and those that `opened` has no place for.

    It closes a connection when the head of a request takes longer than `seconds`, or the rest of a request after its
    answer. It also does so when the client reads nothing for that long. It calls `on_invalid` for each connection that
    sends invalid HTTP.
    """
    members = {"seconds": seconds, "on_invalid": staticmethod(on_invalid), "opened": opened}
    return type("BoundedProtocol", (_BoundedProtocol,), members)


class _BoundedProtocol(HttpToolsProtocol):
    seconds: float
    on_invalid: Callable[[], None]
    opened: OpenConnections
    transport: GracefulTransport
    _current: RequestResponseCycle | None = None
    """Request that the app answers or answered last. uvicorn's `cycle` is the newest request, which may be queued."""
    _is_last_request_read = False
    """True once no further request is read and all later input is dropped."""
    _half_closed: asyncio.Event
    """Event set when the client closes its sending half and, as far as the server knows, still waits for answers."""
    _half_closed_timer: asyncio.TimerHandle | None = None
    """Timer of the next check on a half-closed client."""
    _probe_at = 0.0
    """Time, on the loop's clock, from which a half-closed client is probed."""
    _probe_interval = _FIRST_PROBE
    _read_timer: asyncio.TimerHandle | None = None
    """Timeout of reading a head, or the rest of a body after its answer."""
    _write_timer: asyncio.TimerHandle | None = None
    _in_body = False
    _head_bytes = 0
    """Bytes received of the current head."""
    _rest_bytes = 0
    """Bytes of the request received after its answer."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._half_closed = asyncio.Event()
        super().connection_made(GracefulTransport(transport, self.seconds))
        self._start_read_timer()
        self.opened.add(self, len(self.connections))

    def connection_lost(self, exc: Exception | None) -> None:
        self.opened.remove(self)
        self.transport.on_connection_lost()
        self._stop_read_timer()
        if self._half_closed_timer is not None:
            self._half_closed_timer.cancel()
        self.resume_writing()
        running = self._current
        if running is not None and not running.response_complete:  # uvicorn notifies the newest request only
            running.disconnected = True
            running.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_last_request_read:
            self._count_dropped_bytes(len(data))
            return
        self._unset_keepalive_if_required()
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as request:
                # The server ignores Upgrade headers, as RFC 9110 allows. The parser ends such a request at its head.
                data = self._head_without_upgrade() + data[request.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn's parser
                continue
            except httptools.HttpParserError as error:
                self._reject(error)
            return

    def _head_without_upgrade(self) -> bytes:
        first = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        headers = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join((first, *headers, b"", b""))

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio: True keeps the transport open
        """Keep the connection open while complete requests are unanswered.

        close() and shutdown(SHUT_WR) look the same to the server. After close() the client's system answers the next
        bytes with a reset, so `_check_half_closed` sends a few bytes.
        """
        last = None if self.transport.is_closing() else self._stop_reading()
        if last is None:
            return False
        self.transport.unread = False
        if not self._half_closed.is_set():
            self._half_closed.set()
            self._probe_at = self.loop.time() + self._probe_interval
            self._half_closed_timer = self.loop.call_later(_POLL_SECONDS, self._check_half_closed)
        return True

    def pause_writing(self) -> None:
        self._write_timer = self.loop.call_later(self.seconds, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.transport.hang_up()

    def hang_up(self) -> None:
        """Close the connection without waiting for the client."""
        self.transport.hang_up()

    def end_keep_alive(self) -> None:
        """Close the connection, after its answer if one is running. Without a first answer it receives one."""
        if self.cycle is not None and not (self.transport.unread and self.cycle.response_complete):
            super().shutdown()

    def on_message_begin(self) -> None:
        self.transport.unread = True
        self._head_bytes = self._rest_bytes = 0
        self._unset_keepalive_if_required()  # set if this request came with the end of the last one
        if self._read_timer is None:  # otherwise the timer has run since the connection was made
            self._start_read_timer()
        super().on_message_begin()
        self.scope["extensions"] = {HALF_CLOSED: self._half_closed}  # type: ignore[dict-item]  # private extension

    def on_url(self, url: bytes) -> None:
        self._count_head_bytes(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head_bytes(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            raise ValueError("method CONNECT is not supported")
        if self.parser.should_upgrade():
            return  # the head is parsed again, without the header
        self._stop_read_timer()
        self.url = _target_with_path(self.url)
        super().on_headers_complete()
        self._in_body = True
        # The client may omit an expected body, so the next bytes are ambiguous.
        if self.expect_100_continue or self.opened.is_closing:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._count_dropped_bytes(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self.transport.unread = self._in_body = False
        if self._read_timer is not None:  # the rest was read, so the next request may follow
            self._stop_read_timer()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.opened.mark_idle(self)
        super().on_response_complete()
        if self.transport.unread and self.cycle.response_complete and not self.transport.is_closing():
            self._start_read_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current = cycle
        self.opened.remove(self)
        super()._start_asgi_task(cycle, _unchunked(app, cycle) if cycle.scope["http_version"] == "1.0" else app)

    def _reject(self, error: Exception) -> None:
        """Answer 400 to invalid HTTP, or close the connection if the 400 could be mistaken for part of another answer.

        Complete requests received before are answered first.
        """
        _LOG.warning("%s %s: %s", _INVALID, _address(self.client), error.__context__ or error)
        self.on_invalid()
        if self._stop_reading() is not None:
            return
        if self._in_body and self.cycle.response_started:
            self.transport.hang_up()
        else:
            self.send_400_response(_INVALID)

    def _stop_reading(self) -> RequestResponseCycle | None:
        """Stop reading requests. Return the last complete unanswered one, after which the connection closes."""
        if self._in_body and self.pipeline and self.pipeline[0][0] is self.cycle:
            self.pipeline.popleft()  # its body will never be complete and its answer has not begun
        elif self._in_body:
            return None
        last = self.pipeline[0][0] if self.pipeline else self._current
        if last is None or last.response_complete:
            return None
        self._is_last_request_read, self._in_body = True, False
        last.keep_alive = False
        self.cycle = last
        self._stop_read_timer()
        return last

    def _check_half_closed(self) -> None:
        """Check whether a half-closed client has disconnected."""
        self._half_closed_timer = None
        running = self._current
        if self.transport.is_closing() or running is None:
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()  # connection_lost follows and cancels the request
            return
        if self.loop.time() >= self._probe_at and not running.response_started:  # streams send their own probe
            if running.scope["http_version"] == "1.0":  # HTTP/1.0 has no interim responses; most such clients are gone
                self.transport.hang_up()
                return
            self.transport.write(_CONTINUE)
            self._probe_interval = min(2 * self._probe_interval, self.seconds)
            self._probe_at = self.loop.time() + self._probe_interval
        self._half_closed_timer = self.loop.call_later(_POLL_SECONDS, self._check_half_closed)

    def _start_read_timer(self) -> None:
        self._read_timer = self.loop.call_later(self.seconds, self._on_read_timeout)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        if self._stop_reading() is None:
            self.transport.hang_up()

    def _count_head_bytes(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD:
            raise ValueError(f"request line and headers exceed {MAX_HEAD} bytes")  # uvicorn answers 400 and closes

    def _count_dropped_bytes(self, size: int) -> None:
        self._rest_bytes += size
        if self._rest_bytes > MAX_REST:
            self.transport.hang_up()


def _target_with_path(target: bytes) -> bytes:
    """Return a request's target in a form that uvicorn can read. Raises ValueError for a target without a path."""
    try:
        parsed = httptools.parse_url(target)
    except httptools.HttpParserInvalidURLError:
        parsed = None
    if parsed is not None and parsed.path is not None:
        return target
    if parsed is None or parsed.schema not in (b"http", b"https"):
        raise ValueError("request target has no path")
    return b"/" if parsed.query is None else b"/?" + parsed.query  # http://host means the root path


def _address(client: tuple[str, int] | None) -> str:
    return "unknown" if client is None else f"{client[0]}:{client[1]}"


def _unchunked(app: ASGIApp, cycle: RequestResponseCycle) -> Any:
    """Return `app` with streams that end with the connection, since HTTP/1.0 has no chunks."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unchunked(message: Message) -> None:
            if message["type"] == "http.response.start" and b"content-length" not in dict(message["headers"]):
                cycle.chunked_encoding, cycle.expected_content_length = False, _UNBOUNDED
            elif cycle.expected_content_length == _UNBOUNDED and not message.get("more_body", False):
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    return run
