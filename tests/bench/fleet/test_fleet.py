"""Outcomes of simulated requests: complete counts, failures, retries and reused prompts."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simpy
from tests.bench.fleet.materials import SECOND, costs_of, decode, decodes_of, run, scenario_of

from lopa.bench.fleet.fleet import FleetRun, Router
from lopa.bench.fleet.point import FleetReport, LoadPoint, Times, best_points, point_of_run
from lopa.bench.fleet.replica import PromptRows, Replica, SimulatedRequest

STEPS = decodes_of(
    [decode([300, 100, 100]), decode([200, 100], branches=2)],
    [decode([100] * 4), decode([100] * 3, branches=2)],
)


def outcomes(found: FleetRun) -> list[tuple[object, ...]]:
    return [(each.arrived, each.prompt, each.replica, each.outcome, each.ended) for each in found.requests]


FLEETS: list[dict[str, Any]] = [
    dict(zip(("routing", "queue", "retry", "failures"), chosen, strict=True))
    for chosen in itertools.product(
        ("random", "turns", "least loaded", "affine"),
        (0, 3),
        (None, {"times": 2, "after_seconds": 0.5}),
        (
            None,
            {"mean_seconds_between": 20.0, "repair_seconds": 5.0, "again": False},
            {"mean_seconds_between": 20.0, "repair_seconds": 5.0, "again": True},
        ),
    )
]


@pytest.mark.parametrize("fields", FLEETS, ids=lambda fields: ",".join(map(str, fields.values())))
def test_every_request_is_counted_once_and_runs_are_deterministic(fields: dict[str, Any]) -> None:
    fields = {**fields, "replicas": 3, "slots": 2, "seconds": 40.0, "warm_up_seconds": 10.0, "seed": 7}
    first, second = (run(STEPS, costs_of(), load=8.0, branches=2, **fields) for _ in range(2))
    assert outcomes(first) == outcomes(second)
    point = point_of_run(scenario_of(**fields), 8.0, 2, first)
    assert point.arrived == point.answered + point.refused + point.lost + point.on_their_way
    assert point.on_their_way <= 3 * (2 + fields["queue"]) + (50 if fields["retry"] else 0)
    assert point.answered
    assert (point.lost > 0) == (fields["failures"] is not None and not fields["failures"]["again"])
    assert (point.restarts > 0) == (fields["failures"] is not None and fields["failures"]["again"])
    for each in first.requests:
        if each.outcome == "answered":
            assert each.decode is not None
            assert each.started is not None
            assert each.ended is not None
            assert each.arrived <= each.started < each.ended <= 40.0
            assert each.step == len(each.decode.steps)


def test_another_seed_gives_another_run() -> None:
    first, second = (run(STEPS, costs_of(), load=1.0, seconds=50.0, seed=seed) for seed in (1, 2))
    assert outcomes(first) != outcomes(second)


def test_duration_of_a_request_decoded_alone() -> None:
    found = run(STEPS, costs_of(host_seconds=0.01, joining_seconds=0.2), load=0.02, seconds=2000.0, seed=4)
    alone = next(each for each in found.requests if each.recorded == 0)
    assert alone.ended is not None
    assert alone.ended - alone.arrived == pytest.approx(0.2 + 0.5 + 3 * 0.01)


def test_replicas_are_down_during_repair() -> None:
    failures = {"mean_seconds_between": 30.0, "repair_seconds": 10.0, "again": False}
    found = run(STEPS, costs_of(), load=0.1, replicas=20, seconds=2000.0, failures=failures, seed=1)
    down = sum(totals.down_seconds for totals in found.replicas) / (20 * 2000.0)
    assert down == pytest.approx(10 / 40, rel=0.05)


def test_requests_are_rejected_while_all_replicas_are_down() -> None:
    failures = {"mean_seconds_between": 1.0, "repair_seconds": 1e6, "again": False}
    found = run(STEPS, costs_of(), load=1.0, seconds=200.0, failures=failures, seed=1)
    assert {each.outcome for each in found.requests[-100:]} == {"refused"}
    assert found.requests[-1].replica is None


def test_retries_are_answered_more_often_but_wait_longer() -> None:
    fields = {"slots": 1, "queue": 0, "seconds": 2000.0, "seed": 2}
    once = point(run(STEPS, costs_of(), load=1.5, **fields), **fields)
    again = point(
        run(STEPS, costs_of(), load=1.5, **fields, retry={"times": 5, "after_seconds": 1.0}),
        **fields,
    )
    assert again.refused_share < 0.5 * once.refused_share
    assert again.waiting.p99 is not None
    assert once.waiting.p99 is not None
    assert again.waiting.p99 > once.waiting.p99 + 1


def test_affine_routing_reuses_more_prompts() -> None:
    decodes = decodes_of([decode([90, 10], prompt_rows=80)], attention="block_causal")
    fields = {"replicas": 4, "prefix_cache_tokens": 800, "seconds": 400.0, "seed": 1, "prompts": {"different": 30}}
    never = point(run(decodes, costs_of(), load=8.0, **{**fields, "prefix_cache_tokens": 0}), **fields)
    chance = point(run(decodes, costs_of(), load=8.0, **fields), **fields)
    affine = point(run(decodes, costs_of(), load=8.0, routing="affine", **fields), **fields)
    assert never.prompts_known_share == 0
    # Ten of thirty prompts fit in a replica. With affine routing the fleet caches all of them.
    assert chance.prompts_known_share == pytest.approx(10 / 30, abs=0.05)
    assert affine.prompts_known_share > 0.9
    assert affine.busy_share < chance.busy_share < never.busy_share
    assert never.forward_seconds_a_row == pytest.approx(1 / SECOND)


def test_affine_routing_distributes_prompts_evenly() -> None:
    found = run(
        STEPS, costs_of(), load=50.0, replicas=5, slots=64, seconds=20.0, routing="affine", prompts={"different": 500}
    )
    dealt = np.bincount([each.replica for each in found.requests if each.replica is not None], minlength=5)
    assert dealt.min() > 0.7 * dealt.mean()
    homes = {(each.prompt, each.replica) for each in found.requests[:100]}
    assert len(homes) == len({prompt for prompt, _ in homes})


def test_rates_and_cost_exclude_the_warm_up() -> None:
    fields = {
        "seconds": 1000.0,
        "warm_up_seconds": 500.0,
        "price_per_hour": 3.6,
        "deadline_seconds": 0.45,
        "replicas": 2,
    }
    found = run(STEPS, costs_of(), load=0.2, **fields, slots=4)
    figures = point(found, **fields, slots=4)
    late = [each for each in found.requests if each.outcome == "answered" and each.ended and each.ended >= 500]
    good = [each for each in late if each.ended and each.ended - each.arrived <= 0.45]
    assert 0 < len(good) < len(late)
    assert figures.answers_per_second == len(late) / 500
    assert figures.good_answers_per_second == len(good) / 500
    assert figures.good_tokens_per_second == 10 * len(good) / 500
    assert figures.cost_per_million_tokens == pytest.approx(2 * 0.001 / figures.good_tokens_per_second * 1e6)


def test_the_best_point_is_the_fastest_with_nearly_the_best_goodput() -> None:
    found = run(STEPS, costs_of(), load=0.2, seconds=200.0)
    any_point = point(found, seconds=200.0)
    points = [
        replace(any_point, branches=branches, good_tokens_per_second=good, whole=Times(seconds, seconds))
        for branches, good, seconds in ((1, 100.0, 3.0), (2, 99.5, 2.0), (4, 90.0, 1.0))
    ]
    (best,) = best_points(FleetReport(scenario_of(), "some", 2, tuple(points)))
    assert best.branches == 2


def test_a_failed_replica_is_empty() -> None:
    env = simpy.Environment()
    replica = Replica(0, env, scenario_of(slots=1), costs_of(), lambda request: STEPS.of(request.recorded, 1))
    held = [SimulatedRequest(0, 0, 0.0) for _ in range(3)]
    for request in held:
        replica.enqueue(request)
    env.run(until=0.35)
    assert held[0].step == 1
    assert replica.fail() == held
    assert replica.requests == 0
    assert not replica.has_capacity
    env.run(until=5.0)
    replica.repair()
    env.run(until=10.0)
    assert {request.outcome for request in held} == {"on its way"}
    assert replica.totals.rounds == 1
    assert replica.totals.down_seconds == pytest.approx(4.65)


def test_the_least_recently_used_prompt_is_evicted() -> None:
    cache = PromptRows(20)
    for prompt in (1, 2):
        cache.add(prompt, 10)
    assert cache.use(1)
    cache.add(3, 10)
    assert [prompt in cache for prompt in (1, 2, 3)] == [True, False, True]
    cache.add(4, 21)
    assert 4 not in cache


def test_a_prompt_leaves_its_home_only_if_it_is_full_or_down() -> None:
    env = simpy.Environment()
    scenario = scenario_of(slots=1, queue=0)
    replicas = [
        Replica(number, env, scenario, costs_of(), lambda request: STEPS.of(request.recorded, 1)) for number in range(3)
    ]
    router = Router(replicas, "affine", np.random.default_rng(0))
    home = router.replica_for(17)
    assert home is not None
    assert router.replica_for(17) is home
    home.enqueue(SimulatedRequest(17, 0, 0.0))
    second = router.replica_for(17)
    assert second is replicas[(home.number + 1) % 3]
    second.enqueue(SimulatedRequest(17, 0, 0.0))
    third = router.replica_for(17)
    assert third is second  # the third replica is not tried, so the client is rejected
    home.fail()
    assert router.replica_for(17) is replicas[(home.number + 2) % 3]


def point(found: FleetRun, **fields: Any) -> LoadPoint:
    return point_of_run(scenario_of(**fields), 1.0, 1, found)
