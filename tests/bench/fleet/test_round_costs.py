"""Durations of rounds against explicit formulas, and moments of arrivals."""

from itertools import islice

import msgspec
import numpy as np
import pytest
from tests.bench.fleet.materials import by_rows, costs_of
from tests.bench.fleet.test_scenario import COSTS

from lopa.bench.fleet.arrivals import arrival_gaps, prompt_numbers
from lopa.bench.fleet.round_costs import measured_forward, modelled_forward
from lopa.bench.fleet.scenario import Arrivals, ModelledCosts, Prompts
from lopa.runtime.bundle.costs import CostTable, ForwardCost
from lopa.runtime.contract.sizes import Sizes

H200 = ModelledCosts(
    parameters=7.6e9, weight_bytes=15.2e9, cache_row_bytes=0, operations=989e12, bandwidth=4.8e12, round_seconds=0.014
)


@pytest.mark.parametrize(("branches", "milliseconds"), [(1, 3.17), (2, 3.17), (4, 5.90), (8, 11.80)])
def test_the_roofline_model_matches_the_documented_values(branches: int, milliseconds: float) -> None:
    found = modelled_forward(H200)(Sizes(1, branches, 96, 64, 96))
    assert 1e3 * found == pytest.approx(milliseconds, abs=0.005)


def test_caches_are_read_once_per_request() -> None:
    costs = ModelledCosts(
        parameters=1, weight_bytes=1e9, cache_row_bytes=1e6, operations=1e12, bandwidth=1e9, round_seconds=0
    )
    assert modelled_forward(costs)(Sizes(3, 2, 10, 64, 10)) == pytest.approx(1 + (3 * 64 + 60) * 1e-3)


def test_a_measured_table_counts_requests_as_branches() -> None:
    table = CostTable(
        msgspec.structs.replace(
            COSTS,
            points=[ForwardCost(branches=count, window=32, prefix=64, seconds=0.001 * count) for count in (1, 4)],
        )
    )
    assert measured_forward(table, 1.5)(Sizes(2, 2, 32, 64, 32)) == pytest.approx(0.006)


def test_a_round_packs_forwards_and_adds_host_time() -> None:
    small, large = Sizes(1, 1, 10, 64, 10), Sizes(1, 1, 100, 64, 100)
    round_ = costs_of(
        by_rows, round_seconds=1.0, host_seconds=0.1, host_seconds_a_branch=0.01, joining_seconds=0.5
    ).round_of([small, large, small, small], [1, 4, 2, 1], 2)
    assert round_.rows == 130
    assert round_.forward == pytest.approx(0.13)
    assert round_.host == pytest.approx(1.0 + 0.4 + 0.04 + 2 * 0.5)
    assert round_.seconds == round_.forward + round_.host


@pytest.mark.parametrize(("variation", "load"), [(None, 4.0), (1.0, 4.0), (3.0, 0.5)])
def test_gaps_have_their_mean_and_variation(variation: float | None, load: float) -> None:
    arrivals = Arrivals(process="poisson" if variation is None else "bursty", variation=variation)
    drawn = np.array(list(islice(arrival_gaps(arrivals, load, np.random.default_rng(1)), 100_000)))
    assert drawn.mean() == pytest.approx(1 / load, rel=0.05)
    assert drawn.std() / drawn.mean() == pytest.approx(variation or 1.0, rel=0.05)


@pytest.mark.parametrize("popularity", [0.0, 1.0])
def test_prompts_are_drawn_by_popularity(popularity: float) -> None:
    drawn = list(islice(prompt_numbers(Prompts(different=5, popularity=popularity), np.random.default_rng(1)), 50_000))
    weights = np.arange(1, 6) ** -popularity
    assert np.bincount(drawn) / len(drawn) == pytest.approx(weights / weights.sum(), abs=0.01)
