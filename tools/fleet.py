"""Estimate how many servers a load needs: simulated replicas, from recorded decodes and measured or modelled costs.

Usage: python -m tools.measure fleet decodes BUNDLE --branches 1,4 -o DECODES.json
       python -m tools.measure fleet simulate SCENARIO.json

Requests arrive at random (a Poisson process) and are sent to a replica. It batches them as lopa.runtime.engine does:
waiting requests join at the next round if fewer than `slots` run, and leave after their last step. Network, streaming,
failures and memory limits are not modelled.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import click
import msgspec
import numpy as np
from msgspec import Meta

from lopa.bench.buckets.forward_recording import packed_sizes
from lopa.bench.eval_set import eval_set_from_jsonl
from lopa.bench.table import MISSING, Table, show_table
from lopa.bench.turns import result_with_steps
from lopa.cli.options.devices import counts_from_text
from lopa.runtime import BadInputError, Decoder
from lopa.runtime.bundle.costs import CostTable, costs_from_file
from lopa.runtime.contract import tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.files.output_file import write_atomically
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.requests.admission import MAX_NUM_BATCHED_TOKENS, Admission
from lopa.tiny import EVAL

_EXPECTED, _REMEDY = "a file as docs/how-to/measure.md describes it", "correct the file"
_MAX_REQUESTS = 5_000_000
"""Maximum requests of one simulated load. More would take hours and gigabytes."""
_Record = TypeVar("_Record")
Positive = Annotated[float, Meta(gt=0, le=1e18)]
NonNegative = Annotated[float, Meta(ge=0, le=1e12)]
Count = Annotated[int, Meta(ge=1, le=2**20)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of the objects in a file."""


class Decode(_Part, frozen=True, kw_only=True):
    """One prompt decoded alone with one number of branches."""

    branches: Count
    prompt: Count
    """Tokens of the prompt."""
    tokens: Annotated[int, Meta(ge=0)]
    steps: Annotated[tuple[tuple[Count, Count, Count, Annotated[int, Meta(ge=0)]], ...], Meta(min_length=1)]
    """Branches, sequences of the forward, rows per sequence and committed rows before them, by step."""

    def sizes(self, step: int) -> Sizes:
        """Return the sizes of a step's forward."""
        _, sequences, window, prefix = self.steps[step]
        return Sizes(1, sequences, window, tiles(prefix), window)


class Decodes(_Part, frozen=True, kw_only=True):
    """Decodes of every prompt with every number of branches."""

    bundle: str
    weights_sha256: str
    prompts: Annotated[tuple[tuple[Decode, ...], ...], Meta(min_length=1)]


class MeasuredCosts(_Part, tag_field="kind", tag="measured", frozen=True, kw_only=True):
    """Costs from a device's cost table (`bench costs`)."""

    table: str
    slowdown: Positive = 1.0
    joining_seconds: NonNegative = 0.0


class ModelledCosts(_Part, tag_field="kind", tag="modelled", frozen=True, kw_only=True):
    """Roofline costs of an accelerator: the longer of data movement and arithmetic."""

    parameters: Positive
    weight_bytes: Positive
    cache_row_bytes: NonNegative
    operations: Annotated[float, Meta(gt=0)]
    bandwidth: Positive
    round_seconds: NonNegative
    joining_seconds: NonNegative = 0.0


class Scenario(_Part, frozen=True, kw_only=True):
    """A fleet and its loads; docs/how-to/measure.md describes the fields."""

    decodes: str
    costs: MeasuredCosts | ModelledCosts
    loads: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    branches: Annotated[tuple[Count, ...], Meta(min_length=1)]
    replicas: Count
    slots: Count
    queue: Annotated[int, Meta(ge=0)]
    routing: Literal["random", "least loaded"] = "random"
    seconds: Positive
    warm_up_seconds: NonNegative = 0.0
    deadline_seconds: Positive | None = None
    request_seconds: NonNegative = 0.0
    price_per_hour: NonNegative | None = None
    seed: Annotated[int, Meta(ge=0)] = 0


@dataclass(frozen=True)
class Costs:
    """Seconds of a round and of its parts."""

    forward: Callable[[Sizes], float]
    round: float = 0.0
    request: float = 0.0
    """Seconds per request and round."""
    branch: float = 0.0
    """Seconds per request and round for each branch after the first."""
    joining: float = 0.0
    """Seconds per request, once."""


@dataclass(eq=False)
class Request:
    """A request of the simulation. Times are in simulated seconds."""

    decode: Decode
    arrived: float
    started: float = 0.0
    ended: float | None = None
    """Time of the complete answer or of the refusal."""
    refused: bool = False
    step: int = 0


@dataclass(eq=False)
class Replica:
    """A server with its totals."""

    slots: int
    costs: Costs
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)
    round_begin: float = 0.0
    round_end: float = math.inf
    """Time at which the current round ends; infinity if no request runs."""
    busy: float = 0.0
    """Seconds spent in complete rounds."""
    rounds: int = 0
    steps: int = 0
    """Steps of all requests."""
    _admission: Admission = field(default_factory=lambda: Admission(MAX_NUM_BATCHED_TOKENS))

    @property
    def requests(self) -> int:
        """Number of running and waiting requests."""
        return len(self.running) + len(self.waiting)

    def begin_round(self, now: float) -> None:
        """Let waiting requests join, and start a round if any request runs."""
        rows = [each.decode.prompt for each in list(self.waiting)[: self.slots - len(self.running)]]
        for _ in range(self._admission.number_joining(rows, nothing_runs=not self.running)):
            request = self.waiting.popleft()
            request.started = now
            self.running.append(request)
        self.round_begin = now
        self.round_end = now + self._round_seconds() if self.running else math.inf

    def finish_round(self) -> None:
        """Count the current round, and let complete requests leave."""
        self.busy += self.round_end - self.round_begin
        self.rounds += 1
        self.steps += len(self.running)
        for request in self.running:
            request.step += 1
            if request.step == len(request.decode.steps):
                request.ended = self.round_end
        self.running = [each for each in self.running if each.ended is None]

    def _round_seconds(self) -> float:
        costs, branches = self.costs, [each.decode.steps[each.step][0] for each in self.running]
        forwards = packed_sizes([each.decode.sizes(each.step) for each in self.running])
        host = costs.round + len(branches) * costs.request + (sum(branches) - len(branches)) * costs.branch
        joining = sum(not each.step for each in self.running)
        return sum(map(costs.forward, forwards)) + host + joining * costs.joining


def simulate(
    scenario: Scenario, decodes: Sequence[Decode], costs: Costs, load: float
) -> tuple[list[Request], list[Replica]]:
    """Return the requests, in order of arrival, and the replicas after the scenario's seconds.

    The clients ask for random `decodes`, `load` times per second in the mean. They are the same for every number of
    branches.
    """
    gaps, prompts, routing = map(np.random.default_rng, np.random.SeedSequence(scenario.seed).spawn(3))
    replicas = [Replica(scenario.slots, costs) for _ in range(scenario.replicas)]
    requests: list[Request] = []
    arrival = gaps.exponential(1 / load)
    while True:
        next_done = min(replicas, key=lambda each: each.round_end)
        now = min(arrival, next_done.round_end)
        if now >= scenario.seconds:
            return requests, replicas
        if next_done.round_end == now:
            next_done.finish_round()
            next_done.begin_round(now)
            continue
        request = Request(decodes[int(prompts.random() * len(decodes))], now)
        requests.append(request)
        arrival += gaps.exponential(1 / load)
        if scenario.routing == "random":
            replica = replicas[int(routing.integers(len(replicas)))]
        else:
            replica = min(replicas, key=lambda each: each.requests)
        if replica.requests >= scenario.slots + scenario.queue:
            request.refused, request.ended = True, now
            continue
        replica.waiting.append(request)
        if replica.round_end == math.inf:
            replica.begin_round(now)


def row_of_load(
    scenario: Scenario, load: float, branches: int, requests: Sequence[Request], replicas: Sequence[Replica]
) -> tuple[str, ...]:
    """Return the cells of a simulated load. Only requests that ended after the warm-up count."""
    counted = scenario.seconds - scenario.warm_up_seconds
    ended = [each for each in requests if each.ended is not None and each.ended >= scenario.warm_up_seconds]
    answers = [each for each in ended if not each.refused]
    seconds = [(each.ended or 0.0) - each.arrived + scenario.request_seconds for each in answers]
    limit = math.inf if scenario.deadline_seconds is None else scenario.deadline_seconds
    good = [each for each, taken in zip(answers, seconds, strict=True) if taken <= limit]
    good_rate = sum(each.decode.tokens for each in good) / counted
    rounds, price = sum(each.rounds for each in replicas), scenario.price_per_hour
    cost = None if price is None or not good_rate else price * scenario.replicas / (3600 * good_rate) * 1e6
    return (
        f"{load:g}, {branches}",
        f"{len(good) / counted:.2f}",
        f"{sum(each.decode.tokens for each in answers) / counted:.0f}",
        f"{good_rate:.0f}",
        _ms([each.started - each.arrived for each in answers]),
        _ms(seconds),
        f"{sum(each.refused for each in ended) / max(1, len(ended)):.1%}",
        f"{sum(each.busy for each in replicas) / (scenario.seconds * len(replicas)):.0%}",
        f"{sum(each.steps for each in replicas) / max(1, rounds):.1f}",
        MISSING if cost is None else f"{cost:.3g}",
    )


def _ms(seconds: Sequence[float]) -> str:
    """Return the text "median / 99th percentile" in milliseconds."""
    if not seconds:
        return MISSING
    p50, p99 = np.percentile(seconds, (50, 99)).tolist()
    return f"{1e3 * p50:.0f} / {1e3 * p99:.0f}"


def table_of_scenario(path: Path) -> Table:
    """Return a table of every load with every number of branches.

    Raises BadInputError if the scenario, the decodes or the cost table are invalid or do not match.
    """
    scenario = _record_from_file(path, Scenario)
    decodes = _record_from_file(path.parent / scenario.decodes, Decodes)
    counts = [[each.branches for each in prompt] for prompt in decodes.prompts]
    requests = max(scenario.loads) * scenario.seconds
    missing = [each for each in scenario.branches if not all(each in of_prompt for of_prompt in counts)]
    for is_wrong, received, expected in (
        (missing, f"branches {missing}", f"recorded numbers: {', '.join(map(str, counts[0]))}"),
        (scenario.warm_up_seconds >= scenario.seconds, "a warm-up of the whole run", "a shorter warm_up_seconds"),
        (requests > _MAX_REQUESTS, f"{requests:.0f} requests in one load", f"at most {_MAX_REQUESTS}"),
    ):
        if is_wrong:
            raise BadInputError(f"{path} has {received}", expected=expected, remedy=_REMEDY)
    costs = _costs(scenario.costs, path.parent, decodes)
    rows = []
    for load in scenario.loads:
        for branches in scenario.branches:
            chosen = [next(each for each in prompt if each.branches == branches) for prompt in decodes.prompts]
            rows.append(row_of_load(scenario, load, branches, *simulate(scenario, chosen, costs, load)))
    deadline = scenario.deadline_seconds
    return Table(
        f"{scenario.replicas} x {scenario.slots} slots, {scenario.routing} routing, {len(decodes.prompts)} prompts of "
        f"{decodes.bundle}, {scenario.seconds:g} s each"
        + ("" if deadline is None else f"; good: answered within {deadline:g} s"),
        (
            "requests/s, branches",
            "good/s",
            "tokens/s",
            "good tokens/s",
            "waiting, ms (p50 / p99)",
            "answer, ms (p50 / p99)",
            "refused",
            "utilization",
            "requests/round",
            "cost/M tokens",
        ),
        tuple(rows),
    )


def _record_from_file(path: Path, kind: type[_Record]) -> _Record:
    text = bytes_from_file(path, expected=_EXPECTED, remedy="check the path")
    return value_from_json(text, kind, source=str(path), expected=_EXPECTED, remedy=_REMEDY)


def _costs(costs: MeasuredCosts | ModelledCosts, folder: Path, decodes: Decodes) -> Costs:
    if isinstance(costs, ModelledCosts):
        model = costs

        def roofline(sizes: Sizes) -> float:
            cached = model.cache_row_bytes * (sizes.requests * sizes.prefix + sizes.rows)
            moving = (model.weight_bytes + cached) / model.bandwidth
            return max(moving, 2 * model.parameters * sizes.rows / model.operations)

        return Costs(cache(roofline), model.round_seconds, joining=model.joining_seconds)
    table, slowdown = CostTable(costs_from_file(folder / costs.table)), costs.slowdown
    if table.costs.weights_sha256 != decodes.weights_sha256:
        raise BadInputError(
            f"{folder / costs.table} belongs to another bundle than the decodes",
            expected="a cost table and decodes of the same bundle",
            remedy="measure both with the same bundle",
        )

    def measured(sizes: Sizes) -> float:
        # The table is for one request, so the branches of all requests count as branches of one.
        return slowdown * table.seconds(sizes.requests * sizes.branches, sizes.window, sizes.prefix)

    host = table.costs
    return Costs(cache(measured), 0.0, host.host_seconds, host.host_seconds_a_branch, costs.joining_seconds)


def record_decodes(decoder: Decoder, counts: Sequence[int], *, limit: int) -> Decodes:
    """Decode the embedded prompts alone, `limit` of each kind, with LoPA and every number of branches."""
    configs = [decoder.config(strategy="lopa", branches=each) for each in counts]
    prompts = []
    for item in eval_set_from_jsonl(EVAL, limit=limit):
        decodes = []
        for branches, config in zip(counts, configs, strict=True):
            result, steps = result_with_steps(decoder, item.prompt, config)
            decodes.append(
                Decode(
                    branches=branches,
                    prompt=len(result.prompt_ids),
                    tokens=result.tokens,
                    steps=tuple(
                        (len(step.branches), len(step.rows.lengths), max(step.rows.lengths), step.rows.prefix)
                        for step in steps
                    ),
                )
            )
        prompts.append(tuple(decodes))
    bundle = decoder.bundle
    return Decodes(
        bundle=bundle.path.resolve().name, weights_sha256=bundle.manifest.weights_digest, prompts=tuple(prompts)
    )


@click.group()
def main() -> None:
    """Estimate how many servers a load needs (docs/how-to/measure.md)."""


@main.command(name="decodes")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--branches", required=True, metavar="1,2,..", help="Numbers of branches to decode with.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Prompts of each kind.")
@click.option("--output", "-o", required=True, type=click.Path(path_type=Path), metavar="FILE", help="File to write.")
def record(bundle: Path, branches: str, limit: int, output: Path) -> None:
    """Decode the embedded prompts with BUNDLE on one CPU thread, and record the sizes of every step."""
    counts = counts_from_text(branches, "--branches")
    with Decoder.open(bundle, ["cpu"], threads=1) as decoder:
        write_atomically(output, msgspec.json.encode(record_decodes(decoder, counts, limit=limit)) + b"\n")


@main.command(name="simulate")
@click.argument("scenario", type=click.Path(path_type=Path))
def show(scenario: Path) -> None:
    """Simulate the replicas and loads of the file SCENARIO. The same file gives the same table."""
    show_table(table_of_scenario(scenario))
