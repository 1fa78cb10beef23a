"""Answers per second through Triton beside our own server, both over HTTP, with the same bundle.

Usage: python -m tools.serving.triton TRITON SERVER [--model NAME] [--clients 1,8] [--requests N] [--rounds N]
    [--tokens N]

Both run already, at addresses such as 127.0.0.1:8000, with the bundle under one name and as many slots and threads. So
many clients ask one request after another on connections that they keep, whole answers, greedy, without lookahead; both
take turns in every round, after a round that is not counted. Every answer has to be the same from both.
"""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

import click

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.table import Table, show_table
from lopa.runtime.errors import BadInputError
from lopa.tiny import EVAL
from tools.shown_errors import errors_shown

_TIMEOUT = 120.0


@dataclass(frozen=True)
class Asked:
    """One run: every prompt answered once."""

    texts: list[str]
    seconds: float
    latencies: list[float]
    """Seconds of each answer."""


@click.command()
@click.argument("triton")
@click.argument("server")
@click.option("--model", default="tiny", show_default=True, help="What both call the bundle.")
@click.option("--clients", default="1,8", show_default=True, help="At once; several numbers, each a load.")
@click.option("--requests", type=click.IntRange(min=1), default=32, show_default=True, help="Of each run.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Most of an answer.")
def main(triton: str, server: str, model: str, clients: str, requests: int, rounds: int, tokens: int) -> None:
    """Measure, and show medians."""
    options = {"branches": 1}

    def of_triton(connection: HTTPConnection, prompt: str) -> str:
        body = {"text_input": prompt, "max_new_tokens": tokens, **options}
        return str(_posted(connection, f"/v2/models/{model}/generate", body)["text_output"])

    def of_server(connection: HTTPConnection, prompt: str) -> str:
        body = {"model": model, "prompt": prompt, "max_tokens": tokens, "lopa": options}
        return str(_posted(connection, "/v1/completions", body)["choices"][0]["text"])

    with errors_shown():
        items = eval_set_from_jsonl(EVAL)
        prompts = [items[number % len(items)].prompt for number in range(requests)]
        rows = []
        for count in map(int, clients.split(",")):
            pairs = [
                (_run(of_triton, triton, prompts, count), _run(of_server, server, prompts, count))
                for _ in range(rounds + 1)
            ][1:]
            if any(one.texts != other.texts for one, other in pairs):
                raise BadInputError("answers that differ", expected="one bundle behind both", remedy="check both")
            speeds = [[requests / run.seconds for run in runs] for runs in zip(*pairs, strict=True)]
            middles = [
                statistics.median(latency for run in runs for latency in run.latencies)
                for runs in zip(*pairs, strict=True)
            ]
            ratio = statistics.median(one / other for one, other in zip(*speeds, strict=True))
            told = [f"{statistics.median(each):.1f}" for each in speeds]
            rows.append((str(count), *told, f"{ratio:.2f}", *(f"{1000 * each:.0f}" for each in middles)))
        columns = ("clients", "Triton, requests/s", "server, requests/s", "ratio", "Triton, ms", "server, ms")
        show_table(Table(f"{requests} whole answers, medians of {rounds} rounds", columns, tuple(rows)))


def _run(ask: Callable[[HTTPConnection, str], str], address: str, prompts: Sequence[str], clients: int) -> Asked:
    connections = [HTTPConnection(address, timeout=_TIMEOUT) for _ in range(clients)]
    texts, latencies = [""] * len(prompts), [0.0] * len(prompts)
    waiting = iter(range(len(prompts)))  # next() of it is one step of Python's: no two threads take the same

    def work(connection: HTTPConnection) -> None:
        for number in waiting:
            began = time.perf_counter()
            texts[number] = ask(connection, prompts[number])
            latencies[number] = time.perf_counter() - began

    with ThreadPoolExecutor(clients) as pool:
        began = time.perf_counter()
        list(pool.map(work, connections))
        seconds = time.perf_counter() - began
    for connection in connections:
        connection.close()
    return Asked(texts, seconds, latencies)


def _posted(connection: HTTPConnection, path: str, body: Any) -> Any:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise BadInputError(f"{answer.status} {content[:200]!r}", expected="an answer", remedy="check the server")
    return json.loads(content)


if __name__ == "__main__":
    main()
