"""Servers beside each other: the same requests to each, in turns, over a connection that is kept.

Usage: python -m tools.beside URL [URL ...] --model NAME [--rounds N] [--clients N] [--tokens N]

URLs end before /v1. A round asks every server once for an answer of a token, for a whole answer and for a streamed one,
one request after another; then so many clients ask every server for whole answers at once. Prints medians: milliseconds
of a request, those to the first event of a stream, and answers per second. The client is on this machine too.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import click

from lopa.bench.table import Table, show_table
from lopa.runtime.errors import BadInputError
from tools.shown_errors import errors_shown

_PROMPT = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"
_WARM = 3
"""Rounds that do not count."""


class Asked:
    """One client of one server."""

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        self._connection = HTTPConnection(parts.netloc, timeout=120)
        self._path, self._model = parts.path.rstrip("/") + "/v1/completions", model

    def seconds(self, tokens: int, *, stream: bool = False) -> tuple[float, float]:
        """To the first bytes of an answer, and to its end. Raises BadInputError for anything but an answer."""
        body: dict[str, Any] = {"model": self._model, "prompt": _PROMPT, "max_tokens": tokens, "stream": stream}
        began = time.perf_counter()
        self._connection.request("POST", self._path, json.dumps(body), {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        first = answer.read1()
        seconds_to_first = time.perf_counter() - began
        rest = answer.read()
        if answer.status != 200 or b'"error"' in first[:10] or (stream and not (first + rest).endswith(b"[DONE]\n\n")):
            raise BadInputError(
                f"{answer.status} {(first + rest)[:80]!r}", expected="an answer", remedy="see what that server says"
            )
        return seconds_to_first, time.perf_counter() - began


@click.command()
@click.argument("urls", nargs=-1, required=True)
@click.option("--model", required=True)
@click.option("--rounds", type=click.IntRange(min=1), default=30, show_default=True)
@click.option("--clients", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--tokens", type=click.IntRange(min=1), default=64, show_default=True)
def main(urls: tuple[str, ...], model: str, rounds: int, clients: int, tokens: int) -> None:
    """Measure, and show the medians."""
    with errors_shown():
        times: dict[tuple[str, str], list[float]] = defaultdict(list)
        ones = {url: Asked(url, model) for url in urls}
        crowds = {url: [Asked(url, model) for _ in range(clients)] for url in urls}
        for number in range(-_WARM, rounds):
            for url, asked in ones.items():
                found = {
                    "1 token, ms": 1000 * asked.seconds(1)[1],
                    "whole, ms": 1000 * asked.seconds(tokens)[1],
                    "streamed, ms": 1000 * asked.seconds(tokens, stream=True)[1],
                    "first event, ms": 1000 * asked.seconds(tokens, stream=True)[0],
                    f"{clients} clients, answers/s": clients / _seconds(lambda one: one.seconds(tokens), crowds[url]),
                }
                for name, value in found.items() if number >= 0 else ():
                    times[url, name].append(value)
        names = list(dict.fromkeys(name for _, name in times))
        rows = [(url, *(f"{median(times[url, name]):.1f}" for name in names)) for url in urls]
        show_table(Table(f"{rounds} rounds, {tokens} tokens", ("server", *names), tuple(rows)))


def _seconds(ask: Callable[[Asked], object], crowd: list[Asked]) -> float:
    with ThreadPoolExecutor(len(crowd)) as threads:
        began = time.perf_counter()
        list(threads.map(ask, crowd))
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
