"""Cost of traces per request: one app without traces and with traces, in alternation.

Usage: python -m tools.measure traces BUNDLE [--blocks N] [--requests N]

Both apps use the same engine. Requests enter an app without sockets. A collector in another process receives the
spans. Processor time includes the thread that sends them.
"""

import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from starlette.types import ASGIApp

from lopa.bench.machine import date_now, machine_line, machine_now
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import CheckFailedError
from lopa.serve.answering.pending_service import pending_from_open
from lopa.serve.answering.service import Service
from lopa.serve.app import app_from_pending
from lopa.serve.http.origin_policy import OriginPolicy
from lopa.serve.metrics import ServeMetrics
from lopa.serve.serve_limits import ServeLimits
from lopa.serve.tracing.traces_export import export_traces

_BODY = json.dumps({"model": "m", "prompt": "2 + 3", "max_tokens": 1}).encode()
"""The cheapest request, so that the cost of its trace stands out."""
_SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/v1/completions",
    "raw_path": b"/v1/completions",
    "query_string": b"",
    "headers": [(b"host", b"localhost"), (b"traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")],
    "client": ("127.0.0.1", 1),
    "server": ("127.0.0.1", 2),
}
_WARM_UP = 20
"""Requests to each app before the first measured one."""


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--blocks", default=20, show_default=True, help="Alternations between the two apps.")
@click.option("--requests", default=100, show_default=True, help="Requests of each app per alternation.")
def main(bundle: Path, blocks: int, requests: int) -> None:
    """Compare the time of a request without traces and with traces."""
    metrics = ServeMetrics("m")
    with (
        _collector() as url,
        export_traces(url) as spans,
        Decoder.open(bundle, threads=1) as decoder,
        Engine(decoder, observer=metrics) as engine,
    ):
        service = Service(engine, "m", decoder.tokenizer.decode, ServeLimits(), metrics)
        pending = pending_from_open(service)
        plain = app_from_pending(pending, OriginPolicy())
        pending.spans = spans
        apps = {"without traces": plain, "with traces": app_from_pending(pending, OriginPolicy())}
        times = asyncio.run(_measured(apps, blocks, requests))
    click.echo(machine_line(machine_now(), date_now()))
    for name, (wall, processor) in times.items():
        click.echo(f"{name}: median {_microseconds(wall)} us per request, processor {_microseconds(processor)} us")
    for kind, index in (("wall", 0), ("processor", 1)):
        pairs = zip(times["with traces"][index], times["without traces"][index], strict=True)
        differences = [traced - untraced for traced, untraced in pairs]
        click.echo(f"difference of {kind} time: median {_microseconds(differences)} us")


def _microseconds(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e6:.0f}"


async def _measured(apps: dict[str, ASGIApp], blocks: int, requests: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return the seconds per request of each block, of the wall clock and of the processor, by app."""
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in apps}
    for app in apps.values():
        for _ in range(_WARM_UP):
            await _ask(app)
    for block in range(blocks):
        for name in list(apps)[:: 1 if block % 2 else -1]:
            wall, processor = time.perf_counter(), time.process_time()
            for _ in range(requests):
                await _ask(apps[name])
            found[name][0].append((time.perf_counter() - wall) / requests)
            found[name][1].append((time.process_time() - processor) / requests)
    return found


async def _ask(app: ASGIApp) -> None:
    statuses: list[int] = []
    bodies = iter([{"type": "http.request", "body": _BODY, "more_body": False}])

    async def receive() -> MutableMapping[str, Any]:
        message = next(bodies, None)
        if message is None:
            await asyncio.Event().wait()  # the client stays
        assert message is not None
        return message

    async def send(message: MutableMapping[str, Any]) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    call: Callable[..., Awaitable[None]] = app
    await call(dict(_SCOPE), receive, send)
    if statuses != [200]:
        raise CheckFailedError(f"statuses {statuses}", expected="200", remedy="check the bundle")


@contextmanager
def _collector() -> Iterator[str]:
    """Yield the URL of a collector in another process, which drops what it receives."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_collect, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}/v1/traces"
    finally:
        process.terminate()
        process.join()


def _collect(pipe: "Connection[int, None]") -> None:
    with HTTPServer(("127.0.0.1", 0), _Handler) as server:
        pipe.send(server.server_address[1])
        server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Write nothing."""
