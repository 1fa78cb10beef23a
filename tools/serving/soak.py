"""Thousands of requests to a server over HTTP, each answer checked.

Usage: python -m tools.measure soak BUNDLE [--mix NAME] [--requests N] [--clients N] [--distinct N] [--seed N]
    [--failing N] [-- SERVER OPTIONS]

The requests are completions and chats of all endpoints with all strategies. Some chats have tools, reasoning with a
budget, or both. The requests have one or more prompts and answers, greedy or
sampled. They are streamed (some with drafts) or not, and some have stop strings. With the mix "soak" some clients read
or send slowly, or have a deadline. Some disconnect: while sending the body, before an answer, after its head, or during
it. Some bodies are invalid. With "load" all are patient. With "hostile" every second request has tools that are meant
to exhaust the server. Clients beyond the server's capacity are rejected (429) and retry.

Every answer must equal the decoder's. Each request is first sent alone. An answer that a deadline or a client cut must
be a beginning of the decoder's answer. At the end nothing runs, every slot is free, and the metrics match the clients'
counts. Memory, open files and threads have not grown. With --failing N, the branches run on N + 1 devices of which N
fail one after another, and no answer may change.

The program prints a report as JSON. It has latencies by behaviour and the server's processor time: runs with and
without a server option show its cost. The exit code is 1 if a check failed.
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
from tests.chat_bundles import HERMES, with_chat_template

from lopa.bench.report import Machine, date_now, machine_now
from lopa.runtime.decoder import Decoder
from lopa.runtime.errors import BadInputError
from tools.report import exit_on_error
from tools.serving.bad_requests import MAX_BODY
from tools.serving.cases import ServingCases, cases_of_bundle
from tools.serving.clients import MIXES, Clients, clients_of_server
from tools.serving.server import MODEL, PROGRAM, Resources, ServerProcess, run_server
from tools.serving.tally import Tally, faults_of_metrics

_SLOTS, _QUEUE = 6, 8
_TIMEOUT = 600.0
"""Seconds after which a request counts as lost. A request for 4 answers needs 4 free places at once. Other clients take
them one by one, so it waited 110 s on a busy machine."""
_PARTS = 10
_GROWTH, _STEP_MEGABYTES = 0.05, 32.0
"""Maximum growth of memory from the middle to the end: a share of the total, and a step. More counts as a leak. A step
is the memory of the largest batch so far, which malloc keeps and which may come late."""
_SAMPLES = 3
"""Number of samples whose median counts, in the middle and at the end. Between requests the memory varies by 10 MB,
because malloc returns free memory late."""
_POLL_SECONDS = 0.02
_LOST = "failed, the other devices continue"
_SETTLING = 2.0
_MORE_THREADS = 2
"""Allowed growth of threads. A pool may start a thread late, when it first needs it."""


@dataclass
class SoakReport:
    """Result of a soak test."""

    requests: int
    distinct: int
    date: str = field(default_factory=date_now)
    machine: Machine = field(default_factory=machine_now)
    seconds: float = 0.0
    """Seconds of the mixed requests, and those of the server's processor time."""
    processor_seconds: float = 0.0
    tokens: int = 0
    """Tokens of the mixed requests' answers."""
    milliseconds: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Number, median and 99th percentile of latencies, by behaviour."""
    outcomes: dict[str, int] = field(default_factory=dict)
    answers: int = 0
    """Choices that were read completely."""
    turned_away: int = 0
    """Replies with status 429."""
    after_each_tenth: list[Resources] = field(default_factory=list)
    at_the_end: Resources | None = None
    devices_lost: int = 0
    faults: list[str] = field(default_factory=list)


async def run_soak(
    server: ServerProcess,
    cases: ServingCases,
    *,
    requests: int,
    clients: int,
    capacity: int,
    seed: int,
    timeout: float,
    mix: str = "soak",
) -> SoakReport:
    """Run a soak test on an otherwise idle server with this capacity, slots plus queue.

    `timeout` is the number of seconds after which a request counts as lost.
    """
    tally, report = Tally(), SoakReport(requests, len(cases.distinct))
    before = server.metrics()
    streams = np.random.default_rng(seed).spawn(requests)
    async with clients_of_server(server.url, MODEL, cases, tally, timeout, mix) as sender:
        for number in range(len(cases.distinct)):
            await sender.send_alone(number)
        await sender.fill(capacity)
        await _wait_until_idle(server, tally, timeout)
        began, tokens, used = time.perf_counter(), tally.tokens, server.resources().processor_seconds
        for number in range(_PARTS):
            queue = iter(streams[number::_PARTS])
            await asyncio.gather(*(_client(sender, queue) for _ in range(clients)))
            await _wait_until_idle(server, tally, timeout)
            report.after_each_tenth.append(server.resources())
        report.seconds, report.tokens = round(time.perf_counter() - began, 1), tally.tokens - tokens
        report.processor_seconds = round(report.after_each_tenth[-1].processor_seconds - used, 1)
        await sender.fill(capacity)
        await _wait_until_idle(server, tally, timeout)
    report.at_the_end = await _final_resources(server, report.after_each_tenth[0])
    report.outcomes = dict(sorted(tally.outcomes.items()))
    for name, seconds in sorted(tally.seconds.items()):
        median, late = np.percentile(seconds, (50, 99))
        report.milliseconds[name] = len(seconds), round(1e3 * median), round(1e3 * late)
    report.answers, report.turned_away = tally.answers.total(), tally.rejected["queue_full"]
    report.faults = [
        *tally.faults,
        *faults_of_metrics(before, server.metrics(), tally),
        *_faults_of_resources(report.after_each_tenth, report.at_the_end),
    ]
    if sum(report.outcomes.values()) != requests:
        report.faults.append(f"{sum(report.outcomes.values())} outcomes of {requests} requests")
    return report


async def _client(sender: Clients, streams: Iterator[np.random.Generator]) -> None:
    for rng in streams:
        await sender.send(rng)


async def _wait_until_idle(server: ServerProcess, tally: Tally, timeout: float) -> None:
    """Wait until nothing runs or waits. Record a fault on a timeout."""
    try:
        await asyncio.to_thread(server.wait_until_idle, timeout)
    except TimeoutError as error:
        tally.fault(str(error))


async def _final_resources(server: ServerProcess, first: Resources) -> Resources:
    """Return the resources as soon as they are not above the first ones, or after a while.

    Connections close with a delay.
    """
    end = time.monotonic() + _SETTLING
    while True:
        now = server.resources()
        if (now.files <= first.files and now.threads <= first.threads) or time.monotonic() > end:
            return now
        await asyncio.sleep(_POLL_SECONDS)


def _faults_of_resources(samples: Sequence[Resources], last: Resources) -> list[str]:
    first, half = samples[0], len(samples) // 2
    faults = []
    middle = float(np.median([sample.megabytes for sample in samples[half + 1 - _SAMPLES : half + 1]]))
    late = float(np.median([sample.megabytes for sample in samples[-_SAMPLES:]]))
    if late - middle > _GROWTH * late + _STEP_MEGABYTES:
        faults.append(f"memory grew from {middle} to {late} MB in the second half")
    if last.files > first.files:
        faults.append(f"{last.files} files at the end, {first.files} after the first tenth")
    if last.threads > first.threads + _MORE_THREADS:
        faults.append(f"{last.threads} threads at the end, {first.threads} after the first tenth")
    return faults


@contextmanager
def chat_bundle(bundle: Path) -> Iterator[Path]:
    """Return `bundle`, or a copy with a template for tools and reasoning if it has no template."""
    with Decoder.open(bundle, threads=1) as decoder:
        try:
            decoder.tokenizer.chat([{"role": "user", "content": "1"}])
        except BadInputError:
            pass
        else:
            yield bundle
            return
    with TemporaryDirectory() as folder:
        yield with_chat_template(bundle, Path(folder) / "chat", HERMES)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("server_options", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--requests", type=click.IntRange(min=_PARTS), default=5000, show_default=True, help="Number of requests."
)
@click.option("--distinct", default=60, show_default=True, help="Number of distinct requests.")
@click.option("--seed", default=0, show_default=True, help="Seed of the requests.")
@click.option("--failing", type=click.IntRange(min=0), default=0, show_default=True, help="Number of failing devices.")
@click.option("--mix", type=click.Choice(list(MIXES)), default="soak", show_default=True, help="Behaviour of clients.")
@click.option("--clients", type=click.IntRange(min=1), default=20, show_default=True, help="Number of clients.")
def main(
    bundle: Path,
    server_options: tuple[str, ...],
    requests: int,
    distinct: int,
    seed: int,
    failing: int,
    mix: str,
    clients: int,
) -> None:
    """Run a soak test on a server of BUNDLE with one thread."""
    options = ("--max-num-seqs", _SLOTS, "--queue", _QUEUE, "--max-body", MAX_BODY, *server_options)
    with exit_on_error(), chat_bundle(bundle) as chats:
        cases = cases_of_bundle(chats, distinct, seed)
        # A request needs several calls, so half as many calls as requests always happen.
        program = ("-m", "tools.serving.failing_server", str(failing), str(requests // 2)) if failing else PROGRAM
        with run_server(chats, options, program=program) as server:
            counts = {"requests": requests, "clients": clients, "capacity": _SLOTS + _QUEUE}
            report = asyncio.run(run_soak(server, cases, **counts, seed=seed, timeout=_TIMEOUT, mix=mix))
            report.devices_lost = server.text_of_log().count(_LOST)
            if report.devices_lost != failing:
                report.faults.append(f"{report.devices_lost} devices were lost, expected {failing}")
    print(json.dumps(asdict(report), indent=2))
    sys.exit(1 if report.faults else 0)
