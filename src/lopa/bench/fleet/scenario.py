"""The file of `lopa-export simulate`: a fleet and its load, read strictly. Runs nothing."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lopa.bench.fleet.decodes import Decodes, decodes_from_file
from lopa.runtime.bundle.costs import CostTable, costs_from_file
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, value_from_json
from lopa.runtime.plan import MAX_BRANCHES
from lopa.runtime.requests.admission import MAX_NUM_BATCHED_TOKENS

SCENARIO_SCHEMA = 1
_MAX_REQUESTS = 5_000_000
"""Of one simulated load: more would take hours and hold gigabytes."""
_EXPECTED = "a scenario as docs/how-to/measure.md describes it"
_REMEDY = "correct the file"
_MAX = 1e12

Seconds = Annotated[float, Meta(gt=0, le=1e9)]
NonNegative = Annotated[float, Meta(ge=0, le=_MAX)]
Rate = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(ge=1, le=2**20)]
Routing = Literal["random", "turns", "least loaded", "affine"]
Branches = Annotated[int, Meta(ge=1, le=MAX_BRANCHES)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A part of a scenario."""


class MeasuredCosts(_Part, tag_field="kind", tag="measured", frozen=True):
    """Of a device: the table of `bench --costs`."""

    table: str
    """Its file, seen from the scenario's folder."""
    slowdown: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """How many times as long as there a forward takes in a server, after idling."""
    joining_seconds: NonNegative = 0.0
    """Of every request once, beside its steps: it is read, joins, and its answer is written."""


class ModelledCosts(_Part, tag_field="kind", tag="modelled", frozen=True):
    """Of an accelerator: reading the weights and caches or computing, whichever is longer (docs/how-to/measure.md)."""

    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    weight_bytes: Annotated[float, Meta(gt=0, le=1e15)]
    cache_row_bytes: NonNegative
    """Keys and values of one committed row in all layers."""
    operations: Annotated[float, Meta(gt=0, le=1e20)]
    """Per second."""
    bandwidth: Annotated[float, Meta(gt=0, le=1e18)]
    """Bytes per second."""
    round_seconds: NonNegative
    """Of every round beyond its forwards, however many requests it has."""
    host_seconds: NonNegative = 0.0
    """Of every request in a round."""
    host_seconds_a_branch: NonNegative = 0.0
    """Of each of its branches after the first."""
    joining_seconds: NonNegative = 0.0
    """Of every request once."""


class Arrivals(_Part, frozen=True):
    """When requests come."""

    process: Literal["poisson", "bursty"] = "poisson"
    variation: Annotated[float, Meta(ge=1, le=100)] | None = None
    """Of bursty ones: standard deviation of the gaps over their mean; 1 is Poisson."""


class Prompts(_Part, frozen=True):
    """Which prompts are asked."""

    different: Count
    popularity: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """The n-th has weight n**-popularity; 0: all alike."""


class Retry(_Part, frozen=True):
    """What a client does that was refused."""

    times: Annotated[int, Meta(ge=1, le=1000)]
    after_seconds: Seconds
    """Drawn between half and one and a half of it."""


class Failures(_Part, frozen=True):
    """Of each replica by itself."""

    mean_seconds_between: Seconds
    """While it is up, exponentially distributed."""
    repair_seconds: Seconds
    again: bool
    """Whether what it held is sent to another replica, from its beginning; else it is lost."""


class Scenario(_Part, frozen=True):
    """The whole file."""

    schema: int
    decodes: str
    """File of `bench --decodes`, seen from the scenario's folder."""
    costs: MeasuredCosts | ModelledCosts
    loads: Annotated[tuple[Rate, ...], Meta(min_length=1, max_length=1000)]
    """Requests a second that come to the whole fleet; each is simulated by itself."""
    branches: Annotated[tuple[Branches, ...], Meta(min_length=1, max_length=100)]
    """Each with every load."""
    replicas: Annotated[int, Meta(ge=1, le=100_000)]
    slots: Annotated[int, Meta(ge=1, le=4096)]
    queue: Annotated[int, Meta(ge=0, le=1_000_000)]
    seconds: Seconds
    """Simulated."""
    warm_up_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """At the beginning, not counted."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    deadline_seconds: Seconds | None = None
    """An answer counts as good within them, from its first asking; None: whenever it comes."""
    request_seconds: NonNegative = 0.0
    """Of every answer outside its replica's rounds: network, parsing, text."""
    price_per_hour: NonNegative | None = None
    """Of one replica, in any currency."""
    routing: Routing = "random"
    arrivals: Arrivals = Arrivals()
    prompts: Prompts | None = None
    """None: the recorded ones, all alike."""
    stored_rows: Annotated[int, Meta(ge=0, le=2**30)] = 0
    """Of prompts that a replica keeps for requests to come."""
    max_num_batched_tokens: Count = MAX_NUM_BATCHED_TOKENS
    retry: Retry | None = None
    failures: Failures | None = None


@dataclass(frozen=True)
class Material:
    """A scenario and what its files hold."""

    scenario: Scenario
    decodes: Decodes
    table: CostTable | None
    """None: modelled costs."""


def material_from_file(path: Path) -> Material:
    """Raises BadInputError for a scenario, decodes or a table that cannot be used, or that do not go together."""
    text = bytes_from_file(path, expected=_EXPECTED, remedy="check the path")
    scenario = value_from_json(text, Scenario, source=str(path), expected=_EXPECTED, remedy=_REMEDY)
    _refuse(path, _reasons_against(scenario))
    decodes = decodes_from_file(path.parent / scenario.decodes)
    table = None
    if isinstance(scenario.costs, MeasuredCosts):
        table = CostTable(costs_from_file(path.parent / scenario.costs.table))
    _refuse(path, _reasons_against_material(scenario, decodes, table))
    return Material(scenario, decodes, table)


def _refuse(path: Path, reasons: Iterator[tuple[str, str]]) -> None:
    for received, expected in reasons:
        raise BadInputError(f"{path} has {received}", expected=expected, remedy=_REMEDY)


def _reasons_against(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """What was received, and what was expected."""
    if scenario.schema != SCENARIO_SCHEMA:
        yield f"schema version {scenario.schema}", f"schema version {SCENARIO_SCHEMA}"
    for name in ("loads", "branches"):
        values = getattr(scenario, name)
        if len(set(values)) != len(values):
            yield f"{name} {list(values)}", "each value once"
    if scenario.warm_up_seconds >= scenario.seconds:
        yield (
            f"warm_up_seconds {scenario.warm_up_seconds:g} of {scenario.seconds:g} seconds",
            "a warm-up that is over before the end",
        )
    requests = max(scenario.loads) * scenario.seconds
    if requests > _MAX_REQUESTS:
        yield f"{requests:.0f} requests in one load", f"at most {_MAX_REQUESTS}: a lower load, or fewer seconds"
    bursty = scenario.arrivals.process == "bursty"
    if bursty != (scenario.arrivals.variation is not None):
        yield (
            f"{scenario.arrivals.process} arrivals {'without a' if bursty else 'with a'} variation",
            "a variation where they are bursty, and only there",
        )


def _reasons_against_material(
    scenario: Scenario, decodes: Decodes, table: CostTable | None
) -> Iterator[tuple[str, str]]:
    for branches in scenario.branches:
        if branches not in decodes.counts:
            yield f"branches {branches}", f"numbers that were recorded: {', '.join(map(str, decodes.counts))}"
    if scenario.stored_rows and decodes.window != "block_causal":
        yield (
            f"stored_rows {scenario.stored_rows} with decodes whose window is {decodes.window!r}",
            "0, or decodes with window 'block_causal': only there a prompt's rows can be used again",
        )
    if table is not None and table.costs.weights_sha256 != decodes.weights_sha256:
        yield "a cost table of another bundle than the decodes", "both of one bundle"
