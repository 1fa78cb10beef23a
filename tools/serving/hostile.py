"""Latency of ordinary chats while another client sends tools that are meant to exhaust the server.

Usage: python -m tools.measure hostile BUNDLE [--chats N]

Every hostile request must get a reply: an error 400 that names a field, or an answer. The exit code is 1 otherwise.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import click
import httpx2
import numpy as np

from lopa.bench.table import Table
from lopa.serve.openai.body_options import CHATS
from tools.cli_errors import exit_on_error
from tools.report import show_report
from tools.serving.hostile_tools import hostile_tools
from tools.serving.server import MODEL, run_server
from tools.serving.soak import chat_bundle

_QUESTION = [{"role": "user", "content": "What is 2 + 3?"}]
_PAUSE = 0.05
"""Seconds between two ordinary chats."""
_WARM_UP = 5


async def _latency(http: httpx2.AsyncClient) -> float:
    """Return the milliseconds of one ordinary chat."""
    body = {"model": MODEL, "messages": _QUESTION, "max_tokens": 8}
    began = time.perf_counter()
    reply = await http.post(CHATS, json=body)
    reply.raise_for_status()
    return 1e3 * (time.perf_counter() - began)


async def _latencies(http: httpx2.AsyncClient, count: int) -> list[float]:
    found = []
    for _ in range(count):
        found.append(await _latency(http))
        await asyncio.sleep(_PAUSE)
    return found


async def _send_hostile(http: httpx2.AsyncClient, body: bytes) -> str:
    reply = await http.post(CHATS, content=body, headers={"content-type": "application/json"})
    if reply.status_code == 200:
        return "answered"
    error = reply.json()["error"]
    return f"{reply.status_code} {error['param']}"


async def measure_latencies(url: str, chats: int) -> tuple[list[tuple[str, str, list[float]]], list[float]]:
    """Return the reply and the latencies of `chats` chats for each kind of hostile tools, and the idle latencies."""
    async with httpx2.AsyncClient(base_url=url, timeout=120) as http:
        await _latencies(http, _WARM_UP)
        idle, found = [], []
        for name, tools in hostile_tools().items():
            idle += await _latencies(http, chats)
            fields: dict[str, Any] = {"tools": tools, "tool_choice": "required", "max_tokens": 100}
            body = json.dumps({"model": MODEL, "messages": _QUESTION, **fields}).encode()
            replies: set[str] = set()
            done = asyncio.Event()

            async def send(body: bytes = body, replies: set[str] = replies, done: asyncio.Event = done) -> None:
                while not done.is_set():
                    replies.add(await _send_hostile(http, body))

            sending = asyncio.create_task(send())
            latencies = await _latencies(http, chats)
            done.set()
            await sending
            found.append((name, ", ".join(sorted(replies)), latencies))
        return found, idle


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--chats", type=click.IntRange(min=1), default=20, show_default=True, help="Ordinary chats per kind.")
def main(bundle: Path, chats: int) -> None:
    """Measure chats on a server of BUNDLE while hostile tools arrive."""
    with exit_on_error(), chat_bundle(bundle) as served, run_server(served, ()) as server:
        found, idle = asyncio.run(measure_latencies(server.url, chats))
    base = float(np.median(idle))
    rows = [("idle", "", *(f"{value:.0f}" for value in _delays(idle, base)))]
    rows += [(name, reply, *(f"{value:.0f}" for value in _delays(each, base))) for name, reply, each in found]
    rows.append(("all", "", *(f"{value:.0f}" for value in _delays([x for _, _, each in found for x in each], base))))
    show_report(
        [Table(f"Delay of chats in ms; idle median {base:.0f}", ("tools", "reply", "p50", "p99", "max"), tuple(rows))]
    )
    expected = ("answered", "400 tools", "400 messages")
    if any(each not in expected for _, reply, _ in found for each in reply.split(", ")):
        sys.exit(1)


def _delays(latencies: list[float], base: float) -> tuple[float, ...]:
    return tuple(float(value) - base for value in np.percentile(latencies, (50, 99, 100)))
