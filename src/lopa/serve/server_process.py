"""The server process: its socket, uvicorn and shutdown. This module does not depend on endpoints."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from ipaddress import ip_address

import uvicorn

from lopa.runtime.errors import BadInputError
from lopa.serve.answering.service import Service
from lopa.serve.app import app_from_service
from lopa.serve.http.origin_policy import OriginPolicy
from lopa.serve.http.protocol import protocol_with_timeouts

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WRITE_SECONDS = 5
"""Seconds that finished answers have to reach their clients during shutdown."""
_FAILED_SECONDS = 2.0
"""Seconds that a server with a failed device answers 503 before its process exits."""
_POLL_SECONDS = 0.25
_BACKLOG = 2048


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
    service: Service,
    listening: socket.socket,
    *,
    origin_policy: OriginPolicy,
    drain_seconds: float,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None],
) -> bool:
    """Serve until SIGTERM, SIGHUP or Ctrl-C, then accept no new requests and return when the running ones have ended.

    `on_ready` is called once requests are accepted, and `on_stop` at the signal. Returns whether every answer completed
    within `drain_seconds`. A second SIGTERM or Ctrl-C exits at once with code 128 plus the signal's number. Raises the
    engine's error when a device fails.
    """
    return asyncio.run(_serve(service, listening, origin_policy, drain_seconds, on_ready, on_stop))


async def _serve(
    service: Service,
    listening: socket.socket,
    origin_policy: OriginPolicy,
    drain_seconds: float,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None],
) -> bool:
    server = _Server(
        uvicorn.Config(
            app_from_service(service, origin_policy),
            http=protocol_with_timeouts(
                service.limits.stall_seconds, on_invalid=lambda: service.metrics.rejected(None)
            ),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_WRITE_SECONDS,
        )
    )
    engine = service.engine
    with _stop_signals() as stop:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(_POLL_SECONDS / 10)
        if not serving.done():
            on_ready()
        while not (stop.is_set() or serving.done() or engine.status.failure):
            await _set_within(stop, _POLL_SECONDS)
        drained = False
        if engine.status.failure is not None:
            await _set_within(stop, _FAILED_SECONDS)
        elif stop.is_set():
            on_stop()
            drained = await asyncio.to_thread(engine.drain, drain_seconds)
            if not drained:
                await asyncio.to_thread(engine.close)  # cut requests receive an error before their connections close
        server.should_exit = True
        await serving
    failure = engine.status.failure
    if failure is not None:
        raise failure
    return drained


class _Server(uvicorn.Server):
    """uvicorn.Server without its signal handlers, which stop listening before /ready can report 503."""

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


@contextmanager
def _stop_signals() -> Iterator[asyncio.Event]:
    """Yield an event that the first signal sets. The second signal ends the process.

    Signals that the caller ignores stay ignored.

    After the first signal SIGHUP stays ignored: when a terminal closes, both the system and the shell send it.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    handled = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def on_signal() -> None:
        stop.set()
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else _end_process)

    for number in handled:
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in handled.items():
            loop.remove_signal_handler(number)
            if number != signal.SIGHUP or not stop.is_set():
                signal.signal(number, handler)


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
