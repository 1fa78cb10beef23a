"""The simulator against exact results of queueing theory, with fixed seeds and tolerances of several standard
errors."""

from math import factorial

import numpy as np
import pytest
from tests.bench.fleet.materials import SECOND, costs_of, decode, decodes_of, run

from lopa.bench.fleet.decodes import Decodes
from lopa.bench.fleet.fleet import FleetRun

CONSTANT = decodes_of([decode([SECOND])])
QUANTILES = -np.log1p(-(np.arange(800) + 0.5) / 800)
"""Quantiles of the exponential distribution with mean 1."""
EXPONENTIAL = decodes_of(*([decode([max(1, round(SECOND * each))])] for each in QUANTILES))


def mean_waiting(found: FleetRun) -> float:
    return float(np.mean([each.started - each.arrived for each in found.requests if each.started is not None]))


@pytest.mark.parametrize(
    ("decodes", "second_moment"), [(CONSTANT, 1.0), (EXPONENTIAL, 2.0)], ids=["constant", "exponential"]
)
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_slot_follows_pollaczek_khinchine(decodes: Decodes, second_moment: float, load: float) -> None:
    found = run(decodes, costs_of(), load=load, seconds=20_000.0 / load, seed=3)
    assert mean_waiting(found) == pytest.approx(load * second_moment / (2 * (1 - load)), rel=0.1)


def test_random_routing_gives_independent_queues() -> None:
    found = run(EXPONENTIAL, costs_of(), load=1.5, replicas=3, seconds=10_000.0, seed=1)
    assert mean_waiting(found) == pytest.approx(0.5 / (1 - 0.5), rel=0.1)


def test_least_loaded_beats_round_robin_beats_random() -> None:
    waited = [
        mean_waiting(run(EXPONENTIAL, costs_of(), load=2.4, replicas=3, seconds=2000.0, seed=1, routing=routing))
        for routing in ("least loaded", "turns", "random")
    ]
    assert waited[0] < 0.8 * waited[1] < 0.8 * waited[2]


def test_a_full_queue_rejects_as_often_as_theory_predicts() -> None:
    load, places = 0.9, 4
    found = run(EXPONENTIAL, costs_of(), load=load, queue=places - 1, seconds=20_000.0, seed=2)
    refused = sum(each.outcome == "refused" for each in found.requests) / len(found.requests)
    assert refused == pytest.approx((1 - load) * load**places / (1 - load ** (places + 1)), rel=0.05)


def test_independent_slots_follow_erlang() -> None:
    """Simulate an M/M/c queue: rounds have constant length, and answers a random number of rounds."""
    slots, load, rounds = 2, 1.0, 10
    lengths = [max(1, round(rounds * each)) for each in QUANTILES]
    decodes = decodes_of(*([decode([1] * length)] for length in lengths))
    costs = costs_of(lambda _: 0.0, round_seconds=1 / rounds)
    found = run(decodes, costs, load=load, slots=slots, seconds=8000.0, seed=5, max_num_batched_tokens=2**20)
    load *= float(np.mean(lengths)) / rounds  # in units of the mean answer time
    tail = load**slots / factorial(slots) / (1 - load / slots)
    waits = tail / (sum(load**k / factorial(k) for k in range(slots)) + tail)
    joining = 0.5 / rounds  # requests that arrive during a round wait for its end
    assert mean_waiting(found) == pytest.approx(waits / (slots - load) + joining, rel=0.1)


def test_bursty_arrivals_wait_longer_than_poisson() -> None:
    bursty = run(
        CONSTANT, costs_of(), load=0.6, seconds=6000.0, arrivals={"process": "bursty", "variation": 3.0}, seed=1
    )
    even = run(CONSTANT, costs_of(), load=0.6, seconds=6000.0, seed=1)
    assert len(bursty.requests) == pytest.approx(len(even.requests), rel=0.2)
    assert mean_waiting(bursty) > 2 * mean_waiting(even)
