"""Servers under load beside an engine in this process: the same requests to each, in turns.

Usage: python -m tools.measure load BUNDLE [URL ...] [--model NAME] [-o FOLDER] [--clients 1,2,...] [--requests N]
    [--rounds N] [--branches N] [--tokens N] [--max-num-seqs N]

The sides are an engine in this process, a server of BUNDLE that is a process of its own, and each URL: a server that
runs already and serves the same bundle. A URL ends in /v1 (OpenAI's protocol: lopa-export serve, Ray) or in /v2
(Triton's, of which whole answers are requested only).

Each client sends one request after another on a connection that it keeps, for whole answers, streamed ones, and
streamed ones with drafts, until all prompts of a run are answered. All loads take turns in every round. Decoding is
greedy, on one thread. Every answer must be what a decoder gives alone. Latencies begin before a request is sent. The
clients are this process: they take from what they measure.
"""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import click
import httpx2
import numpy as np

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.progress import progress_shown
from lopa.bench.report import PromptFile, Run, make_folder, prompt_file, run_now
from lopa.bench.table import Table
from lopa.bench.turns import in_turns, median_ratio
from lopa.cli.options.devices import counts_from_text
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import DoneEvent, GenerationResult, TextEvent
from lopa.serve.openai.options import OURS
from lopa.tiny import EVAL
from tools.report import command_words, show_report
from tools.serving.events import events_of_parts
from tools.serving.server import MODEL, served

Form = Literal["whole", "streamed", "with drafts"]
"""How answers come: at once, as a stream of text, or as one with a draft after every step."""
Ask = Callable[[str, Callable[[], None]], Coroutine[Any, Any, str]]
"""Sends one prompt and returns the answer's text; calls back when the first text is there."""
_ENGINE, _SERVER = "engine", "server"


@dataclass(frozen=True)
class Load:
    """Clients with one request at a time each, until all prompts are answered."""

    form: Form
    clients: int
    prompts: Sequence[str]
    config: GenerationConfig
    max_num_seqs: int


@dataclass
class LoadRun:
    """Seconds of one load on one side."""

    wall: float = 0.0
    first_text: list[float] = field(default_factory=list)
    """Seconds to the first text of each streamed answer."""
    whole: list[float] = field(default_factory=list)
    """Seconds to the end of each answer."""


@dataclass(frozen=True)
class Place:
    """A server that is measured."""

    url: str
    """Ends in /v1 or /v2."""
    model: str

    @property
    def is_triton(self) -> bool:
        """True for Triton's protocol."""
        return self.url.endswith("/v2")

    def request(self, load: Load) -> tuple[str, dict[str, Any], str]:
        """Return the URL of a request, its body without the prompt, and the prompt's name in it."""
        tokens, branches = load.config.max_new_tokens, load.config.branches
        if self.is_triton:
            whole = {"max_new_tokens": tokens, "branches": branches}
            return f"{self.url}/models/{self.model}/generate", whole, "text_input"
        options = {"strategy": load.config.strategy, "branches": branches}
        body: dict[str, Any] = {"model": self.model, "max_tokens": tokens, OURS: options}
        if load.form != "whole":
            body |= {"stream": True, "stream_options": {"include_drafts": load.form == "with drafts"}}
        return f"{self.url}/completions", body, "prompt"


@dataclass(frozen=True)
class Measured:
    """All runs of one load on one side."""

    side: str
    form: Form
    clients: int
    runs: tuple[LoadRun, ...]


@dataclass(frozen=True)
class LoadReport:
    """Everything that was measured."""

    run: Run
    prompts: PromptFile
    requests: int
    """Number of requests in each run."""
    tokens: int
    """Number of tokens in all answers of a run."""
    max_num_seqs: int
    branches: int
    measured: tuple[Measured, ...]


def place_from_url(url: str, model: str) -> Place:
    """Return the server behind a URL. Raises BadInputError for a URL of neither protocol."""
    if re.fullmatch(r"http://[^/]+(/.*)?/v[12]/?", url) is None:
        raise BadInputError(
            f"URL {url[:80]!r}", expected="http://HOST:PORT/.../v1 or /v2", remedy="e.g. http://127.0.0.1:8000/v1"
        )
    return Place(url.rstrip("/"), model)


async def run_in_process(decoder: Decoder, load: Load, expected: Sequence[str]) -> LoadRun:
    """Run `load` through an engine of its own, from this process's event loop."""

    async def ask(prompt: str, hear: Callable[[], None]) -> str:
        handle = engine.submit(prompt, load.config, drafts=load.form == "with drafts")
        if load.form == "whole":
            return (await handle).text
        text = ""
        async for event in handle:
            if isinstance(event, TextEvent):
                hear()
            if isinstance(event, DoneEvent):
                text = event.result.text
        return text

    with Engine(
        decoder, max_num_seqs=load.max_num_seqs, queue_limit=max(0, load.clients - load.max_num_seqs)
    ) as engine:
        return await _run(load, [ask] * load.clients, expected, _ENGINE)


async def run_over_http(place: Place, load: Load, expected: Sequence[str]) -> LoadRun:
    """Run `load` over HTTP. Raises CheckFailedError when a request is refused or gets another answer."""
    url, body, field_of_prompt = place.request(load)

    async def ask(client: httpx2.AsyncClient, prompt: str, hear: Callable[[], None]) -> str:
        async with client.stream("POST", url, json={**body, field_of_prompt: prompt}) as reply:
            return await _text_of_reply(reply, hear)

    async with AsyncExitStack() as opened:
        clients = [httpx2.AsyncClient(timeout=None, trust_env=False) for _ in range(load.clients)]
        asks = [partial(ask, await opened.enter_async_context(client)) for client in clients]
        return await _run(load, asks, expected, place.url)


def tables_of_report(report: LoadReport) -> list[Table]:
    """Return a table for each form; rates are medians over rounds, latencies are those of all answers."""
    engine = {(each.form, each.clients): each for each in report.measured if each.side == _ENGINE}
    tables = []
    for form in dict.fromkeys(each.form for each in report.measured):
        rows = []
        for each in (each for each in report.measured if each.form == form):
            walls = [run.wall for run in each.runs]
            beside = [run.wall for run in engine[form, each.clients].runs]
            wall = float(np.median(walls))
            rows.append(
                (
                    f"{each.clients}, {each.side}",
                    f"{report.requests / wall:.1f}",
                    f"{report.tokens / wall:.0f}",
                    f"{median_ratio(beside, walls):.2f}",
                    _latencies([seconds for run in each.runs for seconds in run.first_text]),
                    _latencies([seconds for run in each.runs for seconds in run.whole]),
                )
            )
        title = (
            f"Answers {form}: {report.requests} requests, {report.max_num_seqs} at once, {report.branches} branch(es)"
        )
        columns = ("clients, side", "requests/s", "tokens/s", "rate / engine's", "first text, ms", "whole answer, ms")
        tables.append(Table(f"{title}; ms at 50 % / 99 %", columns, tuple(rows)))
    return tables


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("urls", nargs=-1)
@click.option("--model", default="tiny", show_default=True, help="Name of the model behind the URLs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for load.json and load.md.")
@click.option("--clients", default="1,2,4,8,16,32", show_default=True, help="Numbers of clients, each a load.")
@click.option("--requests", type=click.IntRange(min=1), default=64, show_default=True, help="Requests of each run.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--branches", default=1, show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Maximum number of tokens of an answer.")
@click.option("--max-num-seqs", default=8, show_default=True)
def main(
    bundle: Path,
    urls: tuple[str, ...],
    model: str,
    output: Path | None,
    clients: str,
    requests: int,
    rounds: int,
    branches: int,
    tokens: int,
    max_num_seqs: int,
) -> None:
    """Measure servers beside an engine in this process."""
    numbers = counts_from_text(clients, "--clients", "client")
    places = {url: place_from_url(url, model) for url in urls}
    if output is not None:
        make_folder(output)
    items = eval_set_from_jsonl(EVAL)
    prompts = [items[number % len(items)].prompt for number in range(requests)]
    with Decoder.open(bundle, threads=1) as decoder:
        run = run_now(decoder.bundle, device="cpu", threads=1, arguments=command_words())
        config = decoder.config(branches=branches, max_new_tokens=tokens)
        alone = [next(iter(decoder.generate([prompt], config))) for prompt in prompts]
        loads = [Load(form, number, prompts, config, max_num_seqs) for number in numbers for form in get_args(Form)]
        with served(bundle, ("--max-num-seqs", max_num_seqs, "--queue", max(numbers))) as server:
            places = {_SERVER: Place(f"{server.url}/v1", MODEL), **places}
            measured = _measured(decoder, places, loads, alone, rounds)
    total = sum(result.tokens for result in alone)
    report = LoadReport(run, prompt_file(EVAL, None), requests, total, max_num_seqs, branches, measured)
    show_report(tables_of_report(report), output=output, name="load", record=report)


def _measured(
    decoder: Decoder,
    places: dict[str, Place],
    loads: Sequence[Load],
    alone: Sequence[GenerationResult],
    rounds: int,
) -> tuple[Measured, ...]:
    """Run every load on every side in turns; the first turn finds memory and caches cold, and does not count."""
    expected = [result.text for result in alone]

    def side(place: Place | None, load: Load) -> Callable[[int], LoadRun]:
        if place is None:
            return lambda _: asyncio.run(run_in_process(decoder, load, expected))
        return lambda _: asyncio.run(run_over_http(place, load, expected))

    sides = {
        (name, load.form, load.clients): side(place, load)
        for load in loads
        for name, place in {_ENGINE: None, **places}.items()
        if place is None or not place.is_triton or load.form == "whole"
    }
    with progress_shown("rounds", rounds + 1) as progress:
        found = in_turns(sides, rounds + 1, progress)
    return tuple(Measured(*key, tuple(runs[1:])) for key, runs in found.items())


async def _run(load: Load, clients: Sequence[Ask], expected: Sequence[str], side: str) -> LoadRun:
    run = LoadRun()
    waiting = iter(enumerate(load.prompts))

    async def ask_all(ask: Ask) -> None:
        for number, prompt in waiting:
            began, heard = time.perf_counter(), list[float]()
            text = await ask(prompt, lambda heard=heard: heard.append(time.perf_counter()))  # type: ignore[misc]
            run.whole.append(time.perf_counter() - began)
            run.first_text += [moment - began for moment in heard[:1]]
            if text != expected[number]:
                raise CheckFailedError(
                    f"{side} answers {text[:80]!r} to prompt {number}",
                    expected=f"{expected[number][:80]!r}, as the bundle decodes it",
                    remedy="serve the same bundle",
                )

    began = time.perf_counter()
    await asyncio.gather(*map(ask_all, clients))
    run.wall = time.perf_counter() - began
    return run


async def _text_of_reply(reply: httpx2.Response, hear: Callable[[], None]) -> str:
    if "text/event-stream" not in reply.headers.get("content-type", ""):
        answer = json.loads(await reply.aread())
        if reply.status_code != 200:
            raise CheckFailedError(
                f"{reply.status_code}: {answer}", expected="an answer", remedy="read the server's log"
            )
        return str(answer["choices"][0]["text"] if "choices" in answer else answer["text_output"])
    text = ""
    async for data in events_of_parts(reply.aiter_raw()):
        more = "" if data == b"[DONE]" else "".join(choice["text"] for choice in json.loads(data)["choices"])
        if more:
            hear()
        text += more
    return text


def _latencies(seconds: Sequence[float]) -> str:
    return " / ".join(f"{1000 * value:.0f}" for value in np.percentile(seconds, (50, 99))) if seconds else "-"
