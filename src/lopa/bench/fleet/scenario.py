"""Scenario file of `lopa-export bench simulate`: a fleet and its load. Unknown fields are errors."""

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
from lopa.runtime.options import MAX_BRANCHES
from lopa.runtime.requests.admission import MAX_NUM_BATCHED_TOKENS

SCENARIO_SCHEMA = 1
_MAX_REQUESTS = 5_000_000
"""Maximum requests of one simulated load. More would take hours and gigabytes."""
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
    """Base class of the scenario's objects."""


class MeasuredCosts(_Part, tag_field="kind", tag="measured", frozen=True):
    """Costs from a device's cost table (`bench costs`)."""

    table: str
    """Path of the table, relative to the scenario's folder."""
    slowdown: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Factor by which a forward in an idle server is slower than in the table."""
    joining_seconds: NonNegative = 0.0
    """Seconds per request, once: parsing, joining and writing the answer."""


class ModelledCosts(_Part, tag_field="kind", tag="modelled", frozen=True):
    """Roofline costs of an accelerator: the longer of data movement and arithmetic (docs/how-to/measure.md)."""

    parameters: Annotated[float, Meta(gt=0, le=1e15)]
    weight_bytes: Annotated[float, Meta(gt=0, le=1e15)]
    cache_row_bytes: NonNegative
    """Bytes of keys and values per committed row, all layers."""
    operations: Annotated[float, Meta(gt=0, le=1e20)]
    """Operations per second."""
    bandwidth: Annotated[float, Meta(gt=0, le=1e18)]
    """Bytes per second."""
    round_seconds: NonNegative
    """Seconds per round outside its forwards, for any number of requests."""
    host_seconds: NonNegative = 0.0
    """Seconds per request and round."""
    host_seconds_a_branch: NonNegative = 0.0
    """Seconds per request and round for each branch after the first."""
    joining_seconds: NonNegative = 0.0
    """Seconds per request, once."""


class Arrivals(_Part, frozen=True):
    """Arrival process of the requests."""

    process: Literal["poisson", "bursty"] = "poisson"
    variation: Annotated[float, Meta(ge=1, le=100)] | None = None
    """Standard deviation divided by the mean of the gaps between bursty arrivals. 1 is a Poisson process."""


class Prompts(_Part, frozen=True):
    """Distribution of the requested prompts."""

    different: Count
    popularity: Annotated[float, Meta(ge=0, le=10)] = 0.0
    """Exponent s of the weight n**-s of the n-th prompt. 0 means equal weights."""


class Retry(_Part, frozen=True):
    """Behaviour of a client after a rejection."""

    times: Annotated[int, Meta(ge=1, le=1000)]
    after_seconds: Seconds
    """Mean delay in seconds; the actual delay is between 0.5 and 1.5 of it."""


class Failures(_Part, frozen=True):
    """Failures of each replica, independent of the others."""

    mean_seconds_between: Seconds
    """Mean of the exponential time between repair and failure."""
    repair_seconds: Seconds
    again: bool
    """True if another replica starts the lost requests again. Otherwise they are lost."""


class Scenario(_Part, frozen=True):
    """The whole scenario file."""

    schema: int
    decodes: str
    """Path of the decodes (`bench decodes`), relative to the scenario's folder."""
    costs: MeasuredCosts | ModelledCosts
    loads: Annotated[tuple[Rate, ...], Meta(min_length=1, max_length=1000)]
    """Arrival rates for the whole fleet in requests per second. Each has its own simulation."""
    branches: Annotated[tuple[Branches, ...], Meta(min_length=1, max_length=100)]
    """Numbers of branches, each simulated with every load."""
    replicas: Annotated[int, Meta(ge=1, le=100_000)]
    slots: Annotated[int, Meta(ge=1, le=4096)]
    queue: Annotated[int, Meta(ge=0, le=1_000_000)]
    seconds: Seconds
    """Simulated seconds."""
    warm_up_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0
    """Seconds at the beginning that do not count."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    deadline_seconds: Seconds | None = None
    """Seconds from arrival within which an answer is good, or None if all answers are good."""
    request_seconds: NonNegative = 0.0
    """Seconds per answer outside the replica's rounds: network, parsing, text."""
    price_per_hour: NonNegative | None = None
    """Price of one replica, in any currency."""
    routing: Routing = "random"
    arrivals: Arrivals = Arrivals()
    prompts: Prompts | None = None
    """Distribution of prompts, or None for the recorded prompts with equal weights."""
    prefix_cache_tokens: Annotated[int, Meta(ge=0, le=2**30)] = 0
    """Prompt rows that a replica caches for later requests."""
    max_num_batched_tokens: Count = MAX_NUM_BATCHED_TOKENS
    retry: Retry | None = None
    failures: Failures | None = None


@dataclass(frozen=True)
class Material:
    """A scenario with the content of its files."""

    scenario: Scenario
    decodes: Decodes
    table: CostTable | None
    """Cost table, or None with modelled costs."""


def material_from_file(path: Path) -> Material:
    """Return the scenario with its files.

    Raises BadInputError if the scenario, the decodes or the table are invalid or do not match.
    """
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
    """Yield a pair of texts for each error: the received and the expected content."""
    if scenario.schema != SCENARIO_SCHEMA:
        yield f"schema version {scenario.schema}", f"schema version {SCENARIO_SCHEMA}"
    for name in ("loads", "branches"):
        values = getattr(scenario, name)
        if len(set(values)) != len(values):
            yield f"{name} {list(values)}", "each value once"
    if scenario.warm_up_seconds >= scenario.seconds:
        yield (
            f"warm_up_seconds {scenario.warm_up_seconds:g} of {scenario.seconds:g} seconds",
            "a warm-up shorter than the run",
        )
    requests = max(scenario.loads) * scenario.seconds
    if requests > _MAX_REQUESTS:
        yield f"{requests:.0f} requests in one load", f"at most {_MAX_REQUESTS} (reduce the load or the seconds)"
    bursty = scenario.arrivals.process == "bursty"
    if bursty != (scenario.arrivals.variation is not None):
        yield (
            f"{scenario.arrivals.process} arrivals {'without a' if bursty else 'with a'} variation",
            "a variation if and only if arrivals are bursty",
        )


def _reasons_against_material(
    scenario: Scenario, decodes: Decodes, table: CostTable | None
) -> Iterator[tuple[str, str]]:
    for branches in scenario.branches:
        if branches not in decodes.counts:
            yield f"branches {branches}", f"recorded numbers: {', '.join(map(str, decodes.counts))}"
    if scenario.prefix_cache_tokens and decodes.attention != "block_causal":
        yield (
            f"prefix_cache_tokens {scenario.prefix_cache_tokens} with decodes whose attention is {decodes.attention!r}",
            "0, or decodes with attention 'block_causal', whose prompt rows can be reused",
        )
    if table is not None and table.costs.weights_sha256 != decodes.weights_sha256:
        yield "a cost table of another bundle than the decodes", "a cost table and decodes of the same bundle"
