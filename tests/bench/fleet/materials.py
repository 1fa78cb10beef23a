"""Small decodes and fleets with known results."""

from collections.abc import Sequence
from typing import Any

import msgspec

from lopa.bench.fleet.decodes import Decodes, DecodeStep, RecordedDecode
from lopa.bench.fleet.fleet import FleetRun, simulate_fleet
from lopa.bench.fleet.round_costs import SimulatedCosts
from lopa.bench.fleet.scenario import Material, Scenario
from lopa.runtime.contract.sizes import Sizes

SECOND = 1000
"""Rows of a window whose forward takes one second in `by_rows`."""


def decode(windows: Sequence[int], *, branches: int = 1, tokens: int = 10, prompt_rows: int = 0) -> RecordedDecode:
    """Return a decode with one step per window."""
    steps = tuple(DecodeStep(branches, branches, window, 64) for window in windows)
    return RecordedDecode(
        branches=branches, prompt=max(1, prompt_rows), prompt_rows=prompt_rows, tokens=tokens, steps=steps
    )


def decodes_of(*prompts: Sequence[RecordedDecode], attention: str = "full") -> Decodes:
    return msgspec.convert(
        {
            "schema": 1,
            "bundle": "synthetic",
            "weights_sha256": "",
            "recorded": "",
            "attention": attention,
            "max_new_tokens": 64,
            "limit": 1,
            "prompts": [[msgspec.to_builtins(each) for each in prompt] for prompt in prompts],
        },
        Decodes,
    )


def scenario_of(**fields: Any) -> Scenario:
    defaults = {
        "schema": 1,
        "decodes": "decodes.json",
        "costs": {"kind": "measured", "table": "costs.json"},
        "loads": [1.0],
        "branches": [1],
        "replicas": 1,
        "slots": 1,
        "queue": 1_000_000,
        "seconds": 1000.0,
    }
    return msgspec.convert({**defaults, **fields}, Scenario)


def by_rows(sizes: Sizes) -> float:
    """Return the seconds of a forward, proportional to its rows."""
    return sizes.rows / SECOND


def costs_of(forward: Any = by_rows, **host: float) -> SimulatedCosts:
    return SimulatedCosts(
        forward,
        **{"round_seconds": 0.0, "host_seconds": 0.0, "host_seconds_a_branch": 0.0, "joining_seconds": 0.0, **host},
    )


def run(decodes: Decodes, costs: SimulatedCosts, *, load: float, branches: int = 1, **fields: Any) -> FleetRun:
    return simulate_fleet(Material(scenario_of(loads=[load], **fields), decodes, None), costs, load, branches)
