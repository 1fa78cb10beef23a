"""The process that serves: a socket, uvicorn on it, and what ends it. Knows no endpoint."""

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
from lopa.serve.app import app_of_service
from lopa.serve.http.protocol import protocol_within
from lopa.serve.http.visitors import Visitors

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LAST_WRITES = 5
"""Seconds in which answers that are made reach their clients once nothing runs any more."""
_FAILED_SECONDS = 2.0
"""For which a server whose device has failed answers 503, before its process ends."""
_LOOK_SECONDS = 0.25
_BACKLOG = 2048


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket on which connections wait until they are served; port 0: one that is free. Raises BadInputError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _no_socket(host, port, error) from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise _no_socket(host, port, error) from error
    return found


def url_of_socket(listening: socket.socket) -> str:
    """Where clients find it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_on_loopback(listening: socket.socket) -> bool:
    """Whether programs of this machine alone reach it."""
    return ip_address(listening.getsockname()[0]).is_loopback


def serve_until_stopped(
    service: Service,
    listening: socket.socket,
    *,
    visitors: Visitors,
    drain_seconds: float,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None],
) -> bool:
    """Serve until SIGTERM, SIGHUP or Ctrl-C; then take no requests, and end when those that are there have ended.

    `on_ready` is called when requests are taken, `on_stop` at the signal. Whether every answer ended whole within
    `drain_seconds`. A second SIGTERM or Ctrl-C ends the process at once, with 128 and its number as the exit code.
    Raises the engine's error when a device fails.
    """
    return asyncio.run(_served(service, listening, visitors, drain_seconds, on_ready, on_stop))


async def _served(
    service: Service,
    listening: socket.socket,
    visitors: Visitors,
    drain_seconds: float,
    on_ready: Callable[[], None],
    on_stop: Callable[[], None],
) -> bool:
    server = _Server(
        uvicorn.Config(
            app_of_service(service, visitors),
            http=protocol_within(service.limits.stall_seconds, on_invalid=lambda: service.metrics.rejected(None)),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_LAST_WRITES,
        )
    )
    engine = service.engine
    with _asked_to_stop() as stop:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started and not serving.done():
            await asyncio.sleep(_LOOK_SECONDS / 10)
        if not serving.done():
            on_ready()
        while not (stop.is_set() or serving.done() or engine.status.failure):
            await _set_within(stop, _LOOK_SECONDS)
        whole = False
        if engine.status.failure is not None:
            await _set_within(stop, _FAILED_SECONDS)
        elif stop.is_set():
            on_stop()
            whole = await asyncio.to_thread(engine.drain, drain_seconds)
            if not whole:
                await asyncio.to_thread(engine.close)  # what is cut is told so, before connections are closed
        server.should_exit = True
        await serving
    failure = engine.status.failure
    if failure is not None:
        raise failure
    return whole


class _Server(uvicorn.Server):
    """uvicorn without its signals: it would stop listening before anybody can see that it is not ready."""

    def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
        return nullcontext()


@contextmanager
def _asked_to_stop() -> Iterator[asyncio.Event]:
    """Set by the first signal; the second ends the process. One that the caller has us ignore stays ignored.

    After the first signal SIGHUP is ignored for good: when a terminal is closed both the system and the shell send it.
    """
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    heard = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}

    def hear() -> None:
        stop.set()
        for number in heard:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN if number == signal.SIGHUP else _end_process)

    for number in heard:
        loop.add_signal_handler(number, hear)
    try:
        yield stop
    finally:
        for number, handler in heard.items():
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


def _no_socket(host: str, port: int, error: OSError) -> BadInputError:
    return BadInputError(
        f"{host} port {port}: {error.strerror or error}",
        expected="an address of this machine and a port that nobody listens on",
        remedy="choose another --port (0: one that is free) or --host",
    )
