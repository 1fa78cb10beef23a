"""The server process: its socket, uvicorn and shutdown. This module does not depend on endpoints."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from ipaddress import ip_address
from typing import Any

import uvicorn

from lopa.runtime.errors import BadInputError, LopaError
from lopa.serve.answering.service import PendingService, Service
from lopa.serve.app import app_from_pending
from lopa.serve.http.open_connections import OpenConnections, max_connections
from lopa.serve.http.origin_policy import OriginPolicy
from lopa.serve.http.protocol import protocol_with_timeouts
from lopa.serve.service_manager import READY, STOPPING, send_heartbeats, send_state, watchdog_seconds

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_WRITE_SECONDS = 5
"""Seconds that finished answers have to reach their clients during shutdown."""
_FAILED_SECONDS = 2.0
"""Seconds that a server with a failed device answers 503 before its process exits."""
_POLL_SECONDS = 0.25
_SWITCH_SECONDS = 0.001
"""Seconds after which a thread that prepares a request lets the engine's thread run, several times a step."""
_BACKLOG = 2048
_NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
_LOG = logging.getLogger(__name__)


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket whose connections wait until they are served. Port 0 takes a free port.

    Raises BadInputError for an address that cannot be bound.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _socket_error(host, port, error) from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise _socket_error(host, port, error) from error
    return found


def url_from_socket(listening: socket.socket) -> str:
    """Return the URL at which clients reach the socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_on_loopback(listening: socket.socket) -> bool:
    """Return whether only programs on this machine can connect."""
    return ip_address(listening.getsockname()[0]).is_loopback


def serve_until_stopped(
    pending: PendingService,
    start_opening: Callable[[], Future[Service]],
    listening: socket.socket,
    *,
    origin_policy: OriginPolicy,
    drain_seconds: float,
    idle_seconds: float,
    on_ready: Callable[[], None],
    on_reload: Callable[[Exception | None], None],
    on_stop: Callable[[], None],
) -> bool:
    """Serve until SIGTERM or Ctrl-C, then accept no new requests and return when the running ones have ended.

    Once the server answers, `start_opening` starts to open the service on another thread. `pending` receives the
    service. `on_ready` is called once requests are accepted, and `on_stop` at the signal. Returns whether every answer
    completed within `drain_seconds`. A second SIGTERM or Ctrl-C exits at once with code 128 plus the signal's number.

    At SIGHUP, `start_opening` opens a second service, which receives all later requests. The first one closes after its
    last request. `on_reload` is called after each attempt, with its error if the first one stays. When the terminal of
    the process closes, SIGHUP stops the server instead. Connections without a request close after `idle_seconds`.
    A service manager learns of readiness and of the signal, and receives heartbeats (service_manager.py).

    Raises the error of the opening, and the engine's error when a device fails. A signal before the service is open
    raises KeyboardInterrupt for Ctrl-C and SystemExit with 128 plus its number otherwise. The thread then still runs.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return asyncio.run(
            _serve(
                pending,
                start_opening,
                listening,
                origin_policy,
                drain_seconds,
                idle_seconds,
                on_ready,
                on_reload,
                on_stop,
            )
        )
    except _StoppedWhileOpeningError as stopped:
        raise KeyboardInterrupt if stopped.number == signal.SIGINT else SystemExit(128 + stopped.number) from None


class _StoppedWhileOpeningError(Exception):
    """A signal arrived before the service was open."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


async def _serve(
    pending: PendingService,
    start_opening: Callable[[], Future[Service]],
    listening: socket.socket,
    origin_policy: OriginPolicy,
    drain_seconds: float,
    idle_seconds: float,
    on_ready: Callable[[], None],
    on_reload: Callable[[Exception | None], None],
    on_stop: Callable[[], None],
) -> bool:
    opened, watchdog = OpenConnections(max_connections()), watchdog_seconds()
    server = _Server(
        uvicorn.Config(
            app_from_pending(pending, origin_policy),
            http=protocol_with_timeouts(
                pending.limits.stall_seconds, on_invalid=lambda: pending.metrics.rejected(None), opened=opened
            ),
            timeout_keep_alive=idle_seconds,  # type: ignore[arg-type]  # uvicorn passes it to call_later
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=1,  # asyncio accepts as many connections at once, and logs as many errors without descriptors
            timeout_graceful_shutdown=_WRITE_SECONDS,
        )
    )
    drained = False
    asyncio.get_running_loop().set_exception_handler(_log_loop_error)
    with _stop_signals() as stop:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(_POLL_SECONDS / 10)
        listening.listen(_BACKLOG)  # uvicorn has set it to its own
        try:
            if not serving.done():
                pending.change(await _opened_service(start_opening(), serving, stop, on_stop), None)
            if pending.service is not None:
                on_ready()
                send_state(READY)
                beating = asyncio.create_task(send_heartbeats(pending.engines, watchdog))
                reloading = asyncio.create_task(_reload_at_hangups(pending, start_opening, stop.hangup, on_reload))
                failure = await _until_stopped(pending, serving, stop)
                reloading.cancel()
                if failure is None and stop.requested.is_set():
                    on_stop()
                    send_state(STOPPING)
                    pending.is_stopping = opened.is_closing = True
                    for connection in list(server.server_state.connections):
                        connection.end_keep_alive()  # type: ignore[union-attr]  # of protocol_with_timeouts
                    drained = await _drained(pending, drain_seconds)
                beating.cancel()
        finally:
            server.should_exit = True
            await serving
    failure = None if pending.service is None else _log_failure(pending.service)
    if failure is not None:
        raise failure
    return drained


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    if isinstance(error, OSError) and error.errno in _NO_DESCRIPTORS:  # asyncio tries again after a second
        _LOG.warning(
            "no connection accepted for a second: %s; raise the limit of open files (ulimit -n)", error.strerror
        )
    else:
        loop.default_exception_handler(context)


async def _opened_service(
    call: Future[Service], serving: asyncio.Task[None], stop: "_Stop", on_stop: Callable[[], None]
) -> Service | None:
    """Return the service once it is open, or None if the server ends first.

    Raises the error of the opening, and _StoppedWhileOpeningError at a signal.
    """
    opening, stopped = asyncio.wrap_future(call), asyncio.create_task(stop.requested.wait())
    try:
        await asyncio.wait((opening, stopped, serving), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            return opening.result()
        if stop.number is None:
            return None
        on_stop()
        raise _StoppedWhileOpeningError(stop.number)
    finally:
        stopped.cancel()
        opening.cancel()  # the call itself cannot be cancelled, and its result is dropped


async def _reload_at_hangups(
    pending: PendingService,
    start_opening: Callable[[], Future[Service]],
    hangup: asyncio.Event,
    on_reload: Callable[[Exception | None], None],
) -> None:
    """Replace the service after each hangup. Those that arrive meanwhile cause one more: at most two are open."""
    while await hangup.wait():
        hangup.clear()
        try:
            new = await asyncio.wrap_future(start_opening())
        except Exception as error:
            on_reload(error)
            continue
        pending.change(new, pending.service)
        on_reload(None)
        while _is_busy(pending.retiring):
            await asyncio.sleep(_POLL_SECONDS)
        if pending.retiring is not None:
            _log_failure(pending.retiring)
            await asyncio.to_thread(pending.retiring.close)
        pending.change(new, None)


def _is_busy(service: Service | None) -> bool:
    """Return whether requests run, wait or are being prepared. No new ones may arrive.

    A prepared request moves on to the waiting ones at any time, so those are read afterwards.
    """
    if service is None or service.engine.status.reserved:
        return service is not None
    status = service.engine.status
    return bool(status.running or status.waiting)


async def _until_stopped(pending: PendingService, serving: asyncio.Task[None], stop: "_Stop") -> LopaError | None:
    """Wait until a signal, a failure or the server's end. Return the failure after a while, or None."""
    while not (stop.requested.is_set() or serving.done() or pending.opened().engine.status.failure):
        await _set_within(stop.requested, _POLL_SECONDS)
    failure = pending.opened().engine.status.failure
    if failure is not None:
        await _set_within(stop.requested, _FAILED_SECONDS)
    return failure


def _log_failure(service: Service) -> LopaError | None:
    """Return the failure of a device, after logging it with its traceback, or None."""
    failure = service.engine.status.failure
    if failure is not None:
        _LOG.error("a device failed", exc_info=failure)
    return failure


async def _drained(pending: PendingService, seconds: float) -> bool:
    """Return whether every answer completed within `seconds`, also of requests that are being prepared."""
    engines = pending.engines()
    end = time.monotonic() + seconds
    while any(each.status.reserved for each in engines) and time.monotonic() < end:
        await asyncio.sleep(_POLL_SECONDS / 10)
    rest = max(0.0, end - time.monotonic())
    drained = await asyncio.gather(*(asyncio.to_thread(each.drain, rest) for each in engines))
    if not all(drained):  # cut requests receive an error before their connections close
        await asyncio.gather(*(asyncio.to_thread(each.close) for each in engines))
    return all(drained)


class _Server(uvicorn.Server):
    """uvicorn.Server without its signal handlers, which stop listening before /ready can report 503."""

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


class _Stop:
    """The first signal."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hangup = asyncio.Event()
        """Event set by a SIGHUP that does not stop the server."""
        self.number: int | None = None
        """Number of the signal, or None before it."""


@contextmanager
def _stop_signals() -> Iterator[_Stop]:
    """Yield an object that the first signal changes. The second signal ends the process.

    Signals that the caller ignores stay ignored.

    SIGHUP counts as one only if the terminal of this process has closed. After the first signal it stays ignored: when
    a terminal closes, both the system and the shell send it.
    """
    stop, loop, had_terminal = _Stop(), asyncio.get_running_loop(), _has_terminal()
    before = {number: signal.getsignal(number) for number in (*_SIGNALS, signal.SIGHUP)}
    handled = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def on_signal(received: int) -> None:
        stop.number = received
        stop.requested.set()
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else _end_process)

    def on_hangup() -> None:
        if had_terminal and not _has_terminal():
            on_signal(signal.SIGHUP)
        else:
            stop.hangup.set()

    for number in handled:
        loop.add_signal_handler(number, on_signal, number)
    if signal.SIGHUP in handled:  # a shell may send it before it closes the terminal, so look a little later
        loop.add_signal_handler(signal.SIGHUP, loop.call_later, _POLL_SECONDS, on_hangup)
    try:
        yield stop
    finally:
        for number, handler in handled.items():
            loop.remove_signal_handler(number)
            if number != signal.SIGHUP or not stop.requested.is_set():
                signal.signal(number, handler)


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _end_process(number: int, frame: object) -> None:  # noqa: ARG001
    os._exit(128 + number)


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _socket_error(host: str, port: int, error: OSError) -> BadInputError:
    return BadInputError(
        f"{host} port {port}: {error.strerror or error}",
        expected="an address of this machine and a free port",
        remedy="choose another --host or --port (0 takes a free port)",
    )
