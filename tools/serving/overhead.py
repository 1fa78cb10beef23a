"""Cost of tools and protocols per request: the same chat in turns, with latency and the server's processor time.

Usage: python -m tools.measure overhead BUNDLE [--rounds N]

The template writes only the names of tools, so that the prompts of all variants are short.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import httpx2
import numpy as np
from tests.chat_bundles import HERMES, with_chat_template

from lopa.bench.table import Table
from lopa.serve.openai.body_options import CHATS, MESSAGES, RESPONSES
from tools.cli_errors import exit_on_error
from tools.report import show_report
from tools.serving.server import MODEL, ServerProcess, run_server

_TEXT = "There are 9 baskets, and each holds 6 candies. How many candies?"
_TEMPLATE = HERMES.replace("{{ tool | tojson }}", "{{ tool.function.name }}")
_TOKENS = 120
_TOOLS = (1, 8, 40)
_CHOICES = ("none", "auto", "required")


def bodies() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name, endpoint and body of every variant of the chat."""
    messages = [{"role": "user", "content": _TEXT}]
    chat = {"model": MODEL, "messages": messages, "max_tokens": _TOKENS}
    yield "chat", CHATS, chat
    yield "messages", MESSAGES, chat
    yield "responses", RESPONSES, {"model": MODEL, "input": _TEXT, "max_output_tokens": _TOKENS}
    for count in _TOOLS:
        for choice in _CHOICES:
            tools = [_tool(number) for number in range(count)]
            yield f"{count} tools, {choice}", CHATS, {**chat, "tools": tools, "tool_choice": choice}


def _tool(number: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    return {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}


def _cpu_seconds(server: ServerProcess) -> float:
    """Return the processor time of the server process so far, without its grammar helper."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def measure_overhead(server: ServerProcess, rounds: int) -> Table:
    """Return the table of all variants. In every round each variant is sent once, after one round without timing."""
    variants = list(bodies())
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in variants}
    counts: dict[str, tuple[int, int]] = {}
    with httpx2.Client(base_url=server.url, timeout=120) as http:
        for number in range(rounds + 1):
            for name, path, body in variants:
                before = _cpu_seconds(server)
                reply = http.post(path, json=body)
                reply.raise_for_status()
                cpu, answer = _cpu_seconds(server) - before, reply.json()
                ours = answer["choices"][0]["lopa"] if "choices" in answer else answer["lopa"]
                counts[name] = ours["steps"], ours["tokens"]
                if number:
                    found[name].append((1e3 * reply.elapsed.total_seconds(), 1e3 * cpu))
    rows = []
    for name, values in found.items():
        latency = np.median([each for each, _ in values])
        steps, tokens = counts[name]
        rows.append((name, f"{latency:.0f}", f"{np.mean([each for _, each in values]):.0f}", str(steps), str(tokens)))
    return Table("One chat in turns", ("chat", "latency, ms", "processor, ms", "steps", "tokens"), tuple(rows))


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Requests per variant.")
def main(bundle: Path, rounds: int) -> None:
    """Measure a chat in all variants on a server of the embedded model's BUNDLE with one thread."""
    with exit_on_error(), TemporaryDirectory() as folder:
        served = with_chat_template(bundle, Path(folder) / "chat", _TEMPLATE)
        with run_server(served, ()) as server:
            table = measure_overhead(server, rounds)
    show_report([table])
