"""Compare servers with an engine in this process under load, with the same requests in alternation.

Usage: python -m tools.measure load BUNDLE [URL ...] [--model NAME] [-o FOLDER] [--clients 1,2,...] [--requests N]
    [--rounds N] [--branches N] [--tokens N] [--max-num-seqs N]

It measures an engine in this process, a server process of BUNDLE, and running servers of the same bundle at each URL. A
URL ends in /v1 (OpenAI's protocol: lopa-export serve, Ray) or in /v2 (Triton's, whole answers only).

Each client sends one request after another on a persistent connection until all prompts of a run are answered. Answers
are whole, streamed, or streamed with drafts. All loads alternate in every round. Decoding is greedy on one thread, and
every answer must equal the decoder's. Latencies start before a request is sent. The clients run in this process, so
they compete with the engine.
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
from lopa.bench.progress import show_progress
from lopa.bench.report import PromptFile, Run, make_folder, prompt_file, run_now
from lopa.bench.table import Table
from lopa.bench.turns import median_ratio, run_in_turns
from lopa.cli.options.devices import counts_from_text
from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.result import DoneEvent, GenerationResult, TextEvent
from lopa.serve.openai.body_options import LOPA_FIELD
from lopa.tiny import EVAL
from tools.report import command_words, show_report
from tools.serving.events import events_of_parts
from tools.serving.server import MODEL, run_server

Form = Literal["whole", "streamed", "with drafts"]
"""Form of the answers: whole, streamed, or streamed with a draft after every step."""
Ask = Callable[[str, Callable[[], None]], Coroutine[Any, Any, str]]
"""Function that sends one prompt, calls back at the first text and returns the answer's text."""
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
class ServerAddress:
    """A server to measure."""

    url: str
    """URL that ends in /v1 or /v2."""
    model: str

    @property
    def is_triton(self) -> bool:
        """True for Triton's protocol."""
        return self.url.endswith("/v2")

    def request(self, load: Load) -> tuple[str, dict[str, Any], str]:
        """Return the URL of a request, its body without the prompt, and the prompt's field name."""
        tokens, branches = load.config.max_new_tokens, load.config.branches
        if self.is_triton:
            whole = {"max_new_tokens": tokens, "branches": branches}
            return f"{self.url}/models/{self.model}/generate", whole, "text_input"
        options = {"strategy": load.config.strategy, "branches": branches}
        body: dict[str, Any] = {"model": self.model, "max_tokens": tokens, LOPA_FIELD: options}
        if load.form != "whole":
            body |= {"stream": True, "stream_options": {"include_drafts": load.form == "with drafts"}}
        return f"{self.url}/completions", body, "prompt"


@dataclass(frozen=True)
class MeasuredLoad:
    """All runs of one load on one side."""

    side: str
    form: Form
    clients: int
    runs: tuple[LoadRun, ...]


@dataclass(frozen=True)
class LoadReport:
    """Results of all loads."""

    run: Run
    prompts: PromptFile
    requests: int
    """Number of requests in each run."""
    tokens: int
    """Number of tokens in all answers of a run."""
    max_num_seqs: int
    branches: int
    measured: tuple[MeasuredLoad, ...]


def address_from_url(url: str, model: str) -> ServerAddress:
    """Return the server behind a URL. Raises BadInputError for a URL of neither protocol."""
    if re.fullmatch(r"http://[^/]+(/.*)?/v[12]/?", url) is None:
        raise BadInputError(
            f"unsupported URL {url[:80]!r}",
            expected="http://HOST:PORT/.../v1 or /v2",
            remedy="use a URL such as http://127.0.0.1:8000/v1",
        )
    return ServerAddress(url.rstrip("/"), model)


async def run_in_process(decoder: Decoder, load: Load, expected: Sequence[str]) -> LoadRun:
    """Run `load` with a new engine in this process's event loop."""

    async def ask(prompt: str, on_first_text: Callable[[], None]) -> str:
        handle = engine.submit(prompt, load.config, drafts=load.form == "with drafts")
        if load.form == "whole":
            return (await handle).text
        text = ""
        async for event in handle:
            if isinstance(event, TextEvent):
                on_first_text()
            if isinstance(event, DoneEvent):
                text = event.result.text
        return text

    with Engine(
        decoder, max_num_seqs=load.max_num_seqs, queue_limit=max(0, load.clients - load.max_num_seqs)
    ) as engine:
        return await _run(load, [ask] * load.clients, expected, _ENGINE)


async def run_over_http(address: ServerAddress, load: Load, expected: Sequence[str]) -> LoadRun:
    """Run `load` over HTTP. Raises CheckFailedError for a rejected request or a different answer."""
    url, body, field_of_prompt = address.request(load)

    async def ask(client: httpx2.AsyncClient, prompt: str, on_first_text: Callable[[], None]) -> str:
        async with client.stream("POST", url, json={**body, field_of_prompt: prompt}) as reply:
            return await _text_of_reply(reply, on_first_text)

    async with AsyncExitStack() as opened:
        clients = [httpx2.AsyncClient(timeout=None, trust_env=False) for _ in range(load.clients)]
        asks = [partial(ask, await opened.enter_async_context(client)) for client in clients]
        return await _run(load, asks, expected, address.url)


def tables_of_report(report: LoadReport) -> list[Table]:
    """Return a table for each form. Rates are medians over rounds, latencies cover all answers."""
    engine = {(each.form, each.clients): each for each in report.measured if each.side == _ENGINE}
    tables = []
    for form in dict.fromkeys(each.form for each in report.measured):
        rows = []
        for each in (each for each in report.measured if each.form == form):
            walls = [run.wall for run in each.runs]
            engine_walls = [run.wall for run in engine[form, each.clients].runs]
            wall = float(np.median(walls))
            rows.append(
                (
                    f"{each.clients}, {each.side}",
                    f"{report.requests / wall:.1f}",
                    f"{report.tokens / wall:.0f}",
                    f"{median_ratio(engine_walls, walls):.2f}",
                    _latencies([seconds for run in each.runs for seconds in run.first_text]),
                    _latencies([seconds for run in each.runs for seconds in run.whole]),
                )
            )
        title = f"Form {form}: {report.requests} requests, {report.max_num_seqs} at once, {report.branches} branch(es)"
        columns = ("clients, side", "requests/s", "tokens/s", "rate / engine", "first text, ms", "whole answer, ms")
        tables.append(Table(f"{title}; ms: p50 / p99", columns, tuple(rows)))
    return tables


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("urls", nargs=-1)
@click.option("--model", default="tiny", show_default=True, help="Name of the model behind the URLs.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Folder for load.json and load.md.")
@click.option("--clients", default="1,2,4,8,16,32", show_default=True, help="Comma-separated numbers of clients.")
@click.option("--requests", type=click.IntRange(min=1), default=64, show_default=True, help="Requests per run.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="Measured rounds.")
@click.option("--branches", default=1, show_default=True, help="Branches per request.")
@click.option("--tokens", default=64, show_default=True, help="Maximum number of tokens of an answer.")
@click.option("--max-num-seqs", default=8, show_default=True, help="Maximum concurrent requests.")
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
    """Compare servers with an engine in this process."""
    numbers = counts_from_text(clients, "--clients", "client")
    addresses = {url: address_from_url(url, model) for url in urls}
    if output is not None:
        make_folder(output)
    items = eval_set_from_jsonl(EVAL)
    prompts = [items[number % len(items)].prompt for number in range(requests)]
    with Decoder.open(bundle, threads=1) as decoder:
        run = run_now(decoder.bundle, device="cpu", threads=1, arguments=command_words())
        config = decoder.config(branches=branches, max_new_tokens=tokens)
        alone = [next(iter(decoder.generate([prompt], config))) for prompt in prompts]
        loads = [Load(form, number, prompts, config, max_num_seqs) for number in numbers for form in get_args(Form)]
        with run_server(bundle, ("--max-num-seqs", max_num_seqs, "--queue", max(numbers))) as server:
            addresses = {_SERVER: ServerAddress(f"{server.url}/v1", MODEL), **addresses}
            measured = _measure(decoder, addresses, loads, alone, rounds)
    total = sum(result.tokens for result in alone)
    report = LoadReport(run, prompt_file(EVAL, None), requests, total, max_num_seqs, branches, measured)
    show_report(tables_of_report(report), output=output, name="load", record=report)


def _measure(
    decoder: Decoder,
    addresses: dict[str, ServerAddress],
    loads: Sequence[Load],
    alone: Sequence[GenerationResult],
    rounds: int,
) -> tuple[MeasuredLoad, ...]:
    """Run every load on every side in alternation. The first turn is a warm-up and does not count."""
    expected = [result.text for result in alone]

    def side(address: ServerAddress | None, load: Load) -> Callable[[int], LoadRun]:
        if address is None:
            return lambda _: asyncio.run(run_in_process(decoder, load, expected))
        return lambda _: asyncio.run(run_over_http(address, load, expected))

    sides = {
        (name, load.form, load.clients): side(address, load)
        for load in loads
        for name, address in {_ENGINE: None, **addresses}.items()
        if address is None or not address.is_triton or load.form == "whole"
    }
    with show_progress("rounds", rounds + 1) as progress:
        found = run_in_turns(sides, rounds + 1, progress)
    return tuple(MeasuredLoad(*key, tuple(runs[1:])) for key, runs in found.items())


async def _run(load: Load, clients: Sequence[Ask], expected: Sequence[str], side: str) -> LoadRun:
    run = LoadRun()
    waiting = iter(enumerate(load.prompts))

    async def ask_all(ask: Ask) -> None:
        for number, prompt in waiting:
            began, moments = time.perf_counter(), list[float]()
            text = await ask(prompt, lambda moments=moments: moments.append(time.perf_counter()))  # type: ignore[misc]
            run.whole.append(time.perf_counter() - began)
            run.first_text += [moment - began for moment in moments[:1]]
            if text != expected[number]:
                raise CheckFailedError(
                    f"{side} answers {text[:80]!r} to prompt {number}",
                    expected=f"{expected[number][:80]!r}, the decoder's answer",
                    remedy="serve the same bundle",
                )

    began = time.perf_counter()
    await asyncio.gather(*map(ask_all, clients))
    run.wall = time.perf_counter() - began
    return run


async def _text_of_reply(reply: httpx2.Response, on_first_text: Callable[[], None]) -> str:
    if "text/event-stream" not in reply.headers.get("content-type", ""):
        answer = json.loads(await reply.aread())
        if reply.status_code != 200:
            raise CheckFailedError(
                f"{reply.status_code}: {answer}", expected="an answer", remedy="check the server's log"
            )
        return str(answer["choices"][0]["text"] if "choices" in answer else answer["text_output"])
    text = ""
    async for data in events_of_parts(reply.aiter_raw()):
        more = "" if data == b"[DONE]" else "".join(choice["text"] for choice in json.loads(data)["choices"])
        if more:
            on_first_text()
        text += more
    return text


def _latencies(seconds: Sequence[float]) -> str:
    return " / ".join(f"{1000 * value:.0f}" for value in np.percentile(seconds, (50, 99))) if seconds else "-"
