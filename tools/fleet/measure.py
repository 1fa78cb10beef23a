"""Real servers asked at the moments of a simulated load: what came back, and when. Draws no conclusion."""

import asyncio
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.fleet.fleet import Simulated
from lopa.bench.fleet.point import Times
from lopa.bench.fleet.replica import Asked
from lopa.bench.fleet.scenario import Material, Scenario
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.serve.openai.options import COMPLETIONS, OURS
from lopa.tiny import EVAL
from tools.serving.connection import connected
from tools.serving.server import MODEL, ServerProcess, served

_FULL = 429


@dataclass(frozen=True)
class Answered:
    """What became of one request. Times are in seconds from the load's beginning."""

    due: float
    """When it should have been sent."""
    ended: float
    tokens: int | None
    """None: refused."""


class ServedRounds(NamedTuple):
    """What servers tell of their rounds, in seconds and in sum."""

    seconds: float
    outside: float
    """Of them, beyond the forwards."""
    rows: float
    steps: float


@dataclass(frozen=True)
class MeasuredLoad:
    """One load with one number of branches, as lopa.bench.fleet.point.Point has it."""

    load: float
    branches: int | str
    answers: int
    """That were counted."""
    answers_per_second: float
    tokens_per_second: float
    whole: Times
    refused_share: float
    forward_seconds_a_row: float
    """Of the servers' rounds, the warm-up and the end included; the row may be padding."""
    host_seconds_a_step: float
    """Of a request's step, beyond its forward."""


@contextmanager
def servers_of_scenario(
    bundle: Path, scenario: Scenario, options: Sequence[object] = ()
) -> Iterator[list[ServerProcess]]:
    """A server for every replica, each on a core of its own, the last core first. Raises BadInputError without them."""
    cores = sorted(os.sched_getaffinity(0), reverse=True)
    if scenario.replicas > len(cores):
        raise BadInputError(
            f"{scenario.replicas} replicas", expected=f"at most {len(cores)}, a core each", remedy="lower replicas"
        )
    with ExitStack() as opened:
        servers = []
        for core in cores[: scenario.replicas]:
            places = ("--slots", scenario.slots, "--queue", scenario.queue, *options)
            server = opened.enter_context(served(bundle, places))
            for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), {core})  # threads to come are where those are that start them
            servers.append(server)
        yield servers


def measured(
    material: Material, script: Simulated, load: float, branches: int | str, servers: Sequence[ServerProcess]
) -> MeasuredLoad:
    """The requests of `script` sent to `servers`, and what is counted of them."""
    before = _rounds_of_servers(servers)
    ends = asyncio.run(_asked(material, script, branches, servers))
    after = _rounds_of_servers(servers)
    rounds = ServedRounds(*(last - first for first, last in zip(before, after, strict=True)))
    return measured_load(material.scenario, load, branches, ends, rounds)


def measured_load(
    scenario: Scenario, load: float, branches: int | str, ends: Sequence[Answered], rounds: ServedRounds
) -> MeasuredLoad:
    """Counts what ended after the warm-up and before the end, as the simulation does."""
    counted_seconds = scenario.seconds - scenario.warm_up_seconds
    counted = [each for each in ends if scenario.warm_up_seconds <= each.ended <= scenario.seconds]
    answers = [each for each in counted if each.tokens is not None]
    if not answers:
        raise CheckFailedError(f"no answer at {load:g} requests/s", expected="some", remedy="simulate more seconds")
    p50, p99 = np.percentile([each.ended - each.due for each in answers], (50, 99)).tolist()
    return MeasuredLoad(
        load=load,
        branches=branches,
        answers=len(answers),
        answers_per_second=len(answers) / counted_seconds,
        tokens_per_second=sum(each.tokens or 0 for each in answers) / counted_seconds,
        whole=Times(p50, p99),
        refused_share=1 - len(answers) / len(counted),
        forward_seconds_a_row=(rounds.seconds - rounds.outside) / rounds.rows,
        host_seconds_a_step=rounds.outside / rounds.steps,
    )


def _rounds_of_servers(servers: Sequence[ServerProcess]) -> ServedRounds:
    told = [server.metrics() for server in servers]
    return ServedRounds(
        seconds=sum(each["lopa_round_seconds_sum"] for each in told),
        outside=sum(each["lopa_round_seconds_outside_total"] for each in told),
        rows=sum(each[f'lopa_round_rows_total{{kind="{kind}"}}'] for each in told for kind in ("real", "padding")),
        steps=sum(each["lopa_steps_total"] for each in told),
    )


async def _asked(
    material: Material, script: Simulated, branches: int | str, servers: Sequence[ServerProcess]
) -> list[Answered]:
    """Every request at its moment."""
    prompts = [item.prompt for item in eval_set_from_jsonl(EVAL, limit=material.decodes.limit)]
    options: dict[str, Any] = {"strategy": "lopa", "branches": branches}
    body = {"model": MODEL, "max_tokens": material.decodes.max_new_tokens, OURS: options}
    began = time.perf_counter()

    async def ask(asked: Asked) -> Answered:
        await asyncio.sleep(began + asked.arrived - time.perf_counter())
        assert asked.replica is not None
        async with connected(servers[asked.replica].address) as connection:
            text = json.dumps({**body, "prompt": prompts[asked.recorded]}).encode()
            await connection.send(COMPLETIONS, text)
            head = await connection.head()
            told = await connection.body(head)
        ended = time.perf_counter() - began
        if head.status not in (200, _FULL):
            raise CheckFailedError(f"{head.status}: {told}", expected="an answer", remedy="see what the server says")
        tokens = told["usage"]["completion_tokens"] if head.status == 200 else None
        return Answered(asked.arrived, ended, tokens)

    return list(await asyncio.gather(*map(ask, script.requests)))
