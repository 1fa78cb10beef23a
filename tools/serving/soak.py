"""Thousands of requests of every kind to a server over HTTP, each answer checked: none lost, none mixed up.

Usage: python -m tools.measure soak BUNDLE [--requests N] [--distinct N] [--seed N] [--failing N]

What is asked: chats and completions, one prompt or several, one answer or more, greedy and drawn, streamed (some with
drafts) and not, stop strings, every strategy. Some clients read slowly or send their body slowly, some have a
deadline, some leave: within their body, before an answer, at its head, while it runs. Some bodies are bad. More clients
than there are places are turned away (429) and ask again.

Every answer must be what a decoder gives that does nothing else; before, each is asked over HTTP alone. What a
deadline cut, or a client left, must begin like it. At the end nothing runs, every place is free, the metrics count what
the clients saw, and memory, open files and threads have not grown. With --failing N the branches are dealt over N + 1
devices, of which N fail one after another: no answer may change. Prints a report as JSON; exit code 1 when a check
failed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
from tests.chat_bundles import with_chat_template

from lopa.bench.machine import Machine, date_now, machine_now
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from tools.serving.bad_requests import MAX_BODY
from tools.serving.cases import Cases, cases_of_bundle
from tools.serving.clients import Clients, clients_of_server
from tools.serving.server import MODEL, PROGRAM, Resources, ServerProcess, served
from tools.serving.tally import Tally, faults_of_metrics
from tools.shown_errors import errors_shown

_TEMPLATE = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ '\\n' }}{% endfor %}Answer:"
_SLOTS, _QUEUE, _CLIENTS = 6, 8, 20
_PATIENCE = 120.0
"""Seconds after which a request counts as lost."""
_PARTS = 10
_GROWTH = 0.05
"""Of memory from the middle to the end, as a share of all: more counts as a leak."""
_LOOK = 0.02
_LOST = "was lost, the others go on without it"
_SETTLING = 2.0
_MORE_THREADS = 2
"""A pool of threads begins one when it first needs it, which may be late."""


@dataclass
class SoakReport:
    """What became of a soak."""

    requests: int
    distinct: int
    date: str = field(default_factory=date_now)
    machine: Machine = field(default_factory=machine_now)
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    answers: int = 0
    """Choices that were read whole."""
    turned_away: int = 0
    """Answers of 429."""
    after_each_tenth: list[Resources] = field(default_factory=list)
    at_the_end: Resources | None = None
    devices_lost: int = 0
    faults: list[str] = field(default_factory=list)


async def soaked(
    server: ServerProcess, cases: Cases, *, requests: int, clients: int, places: int, seed: int, patience: float
) -> SoakReport:
    """Soak a server that has so many places, slots and queue together, and does nothing else.

    `patience` are seconds after which something counts as lost.
    """
    tally, report = Tally(), SoakReport(requests, len(cases.distinct))
    before, began = server.metrics(), time.perf_counter()
    streams = np.random.default_rng(seed).spawn(requests)
    async with clients_of_server(server.url, MODEL, cases, tally, patience) as asking:
        for number in range(len(cases.distinct)):
            await asking.ask_alone(number)
        await asking.fill(places)
        await _idle(server, tally, patience)
        for number in range(_PARTS):
            queue = iter(streams[number::_PARTS])
            await asyncio.gather(*(_client(asking, queue) for _ in range(clients)))
            await _idle(server, tally, patience)
            report.after_each_tenth.append(server.resources())
        await asking.fill(places)
        await _idle(server, tally, patience)
    report.at_the_end = await _settled(server, report.after_each_tenth[0])
    report.seconds = round(time.perf_counter() - began, 1)
    report.outcomes = dict(sorted(tally.outcomes.items()))
    report.answers, report.turned_away = tally.answers.total(), tally.rejected["queue_full"]
    report.faults = [
        *tally.faults,
        *faults_of_metrics(before, server.metrics(), tally),
        *_faults_of_resources(report.after_each_tenth, report.at_the_end),
    ]
    if sum(report.outcomes.values()) != requests:
        report.faults.append(f"{sum(report.outcomes.values())} outcomes of {requests} requests")
    return report


async def _client(asking: Clients, streams: Iterator[np.random.Generator]) -> None:
    for rng in streams:
        await asking.ask(rng)


async def _idle(server: ServerProcess, tally: Tally, patience: float) -> None:
    """Wait until nothing runs or waits any more; what still does then is a fault."""
    end = time.monotonic() + patience
    while any(server.metrics()[f"lopa_requests_{state}"] for state in ("running", "waiting")):
        if time.monotonic() > end:
            tally.fault("something runs or waits although every client is done")
            return
        await asyncio.sleep(_LOOK)


async def _settled(server: ServerProcess, first: Resources) -> Resources:
    """What it holds as soon as that is no more than at first, or after a while: connections close a moment later."""
    end = time.monotonic() + _SETTLING
    while True:
        now = server.resources()
        if (now.files <= first.files and now.threads <= first.threads) or time.monotonic() > end:
            return now
        await asyncio.sleep(_LOOK)


def _faults_of_resources(seen: Sequence[Resources], last: Resources) -> list[str]:
    first, middle = seen[0], seen[len(seen) // 2]
    faults = []
    if last.megabytes - middle.megabytes > _GROWTH * last.megabytes:
        faults.append(f"memory grew from {middle.megabytes} to {last.megabytes} MB in the second half")
    if last.files > first.files:
        faults.append(f"{last.files} files at the end, {first.files} after the first tenth")
    if last.threads > first.threads + _MORE_THREADS:
        faults.append(f"{last.threads} threads at the end, {first.threads} after the first tenth")
    return faults


@contextmanager
def chat_bundle(bundle: Path) -> Iterator[Path]:
    """`bundle`, or where it has no chat template a copy of it with one, so that chats can be asked."""
    with Decoder.open(bundle, threads=1) as decoder:
        try:
            decoder.prompt_from_messages([{"role": "user", "content": "1"}])
        except BadInputError:
            pass
        else:
            yield bundle
            return
    with TemporaryDirectory() as folder:
        yield with_chat_template(bundle, Path(folder) / "chat", _TEMPLATE)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--requests", type=click.IntRange(min=_PARTS), default=5000, show_default=True)
@click.option("--distinct", default=60, show_default=True, help="Different requests, each decoded alone before.")
@click.option("--seed", default=0, show_default=True)
@click.option("--failing", type=click.IntRange(min=0), default=0, show_default=True, help="Devices that fail.")
def main(bundle: Path, requests: int, distinct: int, seed: int, failing: int) -> None:
    """Soak a server of BUNDLE that runs with one thread."""
    options = ("--max-num-seqs", _SLOTS, "--queue", _QUEUE, "--max-body", MAX_BODY)
    with errors_shown(), chat_bundle(bundle) as chats:
        cases = cases_of_bundle(chats, distinct, seed)
        # A request has several calls; half as many are surely made before the soak ends.
        program = ("-m", "tools.serving.failing_server", str(failing), str(requests // 2)) if failing else PROGRAM
        with served(chats, options, program=program) as server:
            counts = {"requests": requests, "clients": _CLIENTS, "places": _SLOTS + _QUEUE}
            report = asyncio.run(soaked(server, cases, **counts, seed=seed, patience=_PATIENCE))
            report.devices_lost = server.text_of_log().count(_LOST)
            if report.devices_lost != failing:
                report.faults.append(f"{report.devices_lost} devices were lost, {failing} should be")
    print(json.dumps(asdict(report), indent=2))
    sys.exit(1 if report.faults else 0)
