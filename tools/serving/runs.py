"""The same requests over HTTP and through an engine in this process: one run of each, timed. Draws no conclusion."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lopa.runtime.decoder import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import CheckFailedError
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.requests.observer import AdmissionReport, EndReport, RoundReport
from lopa.runtime.requests.result import DoneEvent, TextEvent
from lopa.serve.openai.options import COMPLETIONS, OURS
from tools.serving.connection import Connection, connected
from tools.serving.events import events_of_parts
from tools.serving.server import MODEL, ServerProcess

Form = Literal["whole", "streamed", "with drafts"]
"""How answers come: at once, as a stream of text, or as one with a draft after every step."""


@dataclass(frozen=True)
class Load:
    """What is asked: so many clients, each with one request at a time, until all prompts are answered."""

    prompts: Sequence[str]
    config: GenerationConfig
    form: Form
    clients: int
    slots: int

    @property
    def waiting(self) -> int:
        """Requests that may have to wait."""
        return max(0, self.clients - self.slots)


@dataclass
class LoadRun:
    """What a load took. Times are in seconds."""

    wall: float = 0.0
    processor: float = 0.0
    """Of the process that decodes, all threads."""
    tokens: int = 0
    steps: int = 0
    rounds: int = 0
    in_rounds: float = 0.0
    """Wall time of all rounds."""
    first_text: list[float] = field(default_factory=list)
    """Of each answer whose text comes before its end is there."""
    whole: list[float] = field(default_factory=list)
    """Of each answer."""


class RoundClock:
    """An observer that adds up rounds."""

    def __init__(self) -> None:
        self.rounds, self.seconds = 0, 0.0

    def round_ended(self, report: RoundReport) -> None:
        """One more."""
        self.rounds += 1
        self.seconds += report.seconds

    def request_admitted(self, _: AdmissionReport) -> None:
        """Nothing to add."""

    def request_ended(self, _: EndReport) -> None:
        """Nothing to add."""


async def run_in_process(decoder: Decoder, load: Load) -> LoadRun:
    """Through an engine of its own, from this process's event loop."""
    run, clock = LoadRun(), RoundClock()
    with Engine(decoder, slots=load.slots, queue_limit=load.waiting, observer=clock) as engine:

        async def ask(prompt: str) -> None:
            began = time.perf_counter()
            handle = engine.submit(prompt, load.config, drafts=load.form == "with drafts")
            if load.form == "whole":
                result = await handle
            else:
                heard = False
                async for event in handle:
                    if isinstance(event, TextEvent) and not heard:
                        heard = True
                        run.first_text.append(time.perf_counter() - began)
                    if isinstance(event, DoneEvent):
                        result = event.result
            run.whole.append(time.perf_counter() - began)
            run.tokens += result.tokens
            run.steps += result.steps

        began, processor = time.perf_counter(), time.process_time()
        prompts = iter(load.prompts)
        await asyncio.gather(*(_ask_all(prompts, ask) for _ in range(load.clients)))
        run.wall, run.processor = time.perf_counter() - began, time.process_time() - processor
    run.rounds, run.in_rounds = clock.rounds, clock.seconds
    return run


async def run_over_http(server: ServerProcess, load: Load) -> LoadRun:
    """Over HTTP, each client with a connection that it keeps; the server does nothing else.

    Raises CheckFailedError when a request is refused.
    """
    run = LoadRun()
    config = load.config
    streamed = {"include_usage": True, "include_drafts": load.form == "with drafts"}
    body: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": config.max_new_tokens,
        OURS: {"strategy": config.strategy, "branches": config.branches},
        "stream": load.form != "whole",
        **({"stream_options": streamed} if load.form != "whole" else {}),
    }

    async def client() -> None:
        async with connected(server.address) as connection:

            async def ask(prompt: str) -> None:
                began = time.perf_counter()
                await connection.send(COMPLETIONS, json.dumps({**body, "prompt": prompt}).encode())
                usage = await _read(connection, run, began)
                run.whole.append(time.perf_counter() - began)
                run.tokens += usage["completion_tokens"]
                run.steps += usage[OURS]["steps"]

            await _ask_all(prompts, ask)

    prompts = iter(load.prompts)
    before, processor = server.metrics(), server.processor_seconds()
    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(load.clients)))
    run.wall, run.processor = time.perf_counter() - began, server.processor_seconds() - processor
    after = server.metrics()
    run.rounds = int(after["lopa_round_seconds_count"] - before["lopa_round_seconds_count"])
    run.in_rounds = after["lopa_round_seconds_sum"] - before["lopa_round_seconds_sum"]
    return run


async def _ask_all(prompts: Iterator[str], ask: Callable[[str], Awaitable[None]]) -> None:
    for prompt in prompts:
        await ask(prompt)


async def _read(connection: Connection, run: LoadRun, began: float) -> dict[str, Any]:
    """The usage of an answer, read to its end; when its first text came is noted."""
    head = await connection.head()
    if "content-length" in head.headers:
        told = await connection.body(head)
        if head.status != 200:
            raise CheckFailedError(f"{head.status}: {told}", expected="an answer", remedy="see what the server says")
        return dict(told["usage"])
    heard, last = False, b""
    async for data in events_of_parts(connection.parts()):
        if not heard and any(choice["text"] for choice in json.loads(data)["choices"]):
            heard = True
            run.first_text.append(time.perf_counter() - began)
        if data != b"[DONE]":
            last = data
    return dict(json.loads(last)["usage"])
