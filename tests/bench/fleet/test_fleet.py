"""What happens to requests: none is lost unheard, failures, retries, prompts used again, branches by load."""

import itertools
from typing import Any

import numpy as np
import pytest
from tests.bench.fleet.materials import SECOND, costs_of, decode, decodes_of, run, scenario_of

from lopa.bench.fleet.fleet import Simulated
from lopa.bench.fleet.point import Point, point_of_run
from lopa.runtime.contract import Sizes

STEPS = decodes_of(
    [decode([300, 100, 100]), decode([200, 100], branches=2)],
    [decode([100] * 4), decode([100] * 3, branches=2)],
)


def outcomes(found: Simulated) -> list[tuple[object, ...]]:
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
def test_every_request_is_counted_once_and_the_same_seed_gives_the_same(fields: dict[str, Any]) -> None:
    fields = {**fields, "replicas": 3, "slots": 2, "seconds": 40.0, "warm_up_seconds": 10.0, "seed": 7}
    first, second = (run(STEPS, costs_of(), load=8.0, branches="load", **fields) for _ in range(2))
    assert outcomes(first) == outcomes(second)
    point = point_of_run(scenario_of(**fields), 8.0, "load", first)
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


def test_a_round_takes_its_forward_and_its_requests_join_at_the_next() -> None:
    found = run(STEPS, costs_of(host_seconds=0.01, joining_seconds=0.2), load=0.02, seconds=2000.0, seed=4)
    alone = next(each for each in found.requests if each.recorded == 0)
    assert alone.ended is not None
    assert alone.ended - alone.arrived == pytest.approx(0.2 + 0.5 + 3 * 0.01)


def test_replicas_are_down_as_long_as_their_repair_takes() -> None:
    failures = {"mean_seconds_between": 30.0, "repair_seconds": 10.0, "again": False}
    found = run(STEPS, costs_of(), load=0.1, replicas=20, seconds=2000.0, failures=failures, seed=1)
    down = sum(work.down_seconds for work in found.replicas) / (20 * 2000.0)
    assert down == pytest.approx(10 / 40, rel=0.05)


def test_without_a_replica_that_is_up_requests_are_refused() -> None:
    failures = {"mean_seconds_between": 1.0, "repair_seconds": 1e6, "again": False}
    found = run(STEPS, costs_of(), load=1.0, seconds=200.0, failures=failures, seed=1)
    assert {each.outcome for each in found.requests[-100:]} == {"refused"}
    assert found.requests[-1].replica is None


def test_who_tries_again_is_answered_more_often_and_waits_longer() -> None:
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


def test_a_known_prompt_is_not_computed_again_and_affine_routing_finds_more_of_them() -> None:
    decodes = decodes_of([decode([90, 10], prompt_rows=80)], window="block_causal")
    fields = {"replicas": 4, "stored_rows": 800, "seconds": 400.0, "seed": 1, "prompts": {"different": 30}}
    never = point(run(decodes, costs_of(), load=8.0, **{**fields, "stored_rows": 0}), **fields)
    chance = point(run(decodes, costs_of(), load=8.0, **fields), **fields)
    affine = point(run(decodes, costs_of(), load=8.0, routing="affine", **fields), **fields)
    assert never.prompts_known_share == 0
    # Ten of thirty prompts fit in a replica; with a home each all of them do.
    assert chance.prompts_known_share == pytest.approx(10 / 30, abs=0.05)
    assert affine.prompts_known_share > 0.9
    assert affine.busy_share < chance.busy_share < never.busy_share
    assert never.forward_seconds_a_row == pytest.approx(1 / SECOND)


def test_affine_routing_deals_prompts_evenly() -> None:
    found = run(
        STEPS, costs_of(), load=50.0, replicas=5, slots=64, seconds=20.0, routing="affine", prompts={"different": 500}
    )
    dealt = np.bincount([each.replica for each in found.requests if each.replica is not None], minlength=5)
    assert dealt.min() > 0.7 * dealt.mean()
    homes = {(each.prompt, each.replica) for each in found.requests[:100]}
    assert len(homes) == len({prompt for prompt, _ in homes})


def test_branches_by_load_are_many_for_one_and_one_for_many() -> None:
    """An accelerator: rows are free up to 400, and beyond that cost in proportion."""
    decodes = decodes_of([decode([100] * 8), decode([100] * 6, branches=4)])

    def seconds(sizes: Sizes) -> float:
        return max(400, sizes.rows) / SECOND

    few = run(decodes, costs_of(seconds), load=0.001, slots=8, branches="load", seconds=20_000.0, seed=1)
    many = run(decodes, costs_of(seconds), load=50.0, slots=8, branches="load", seconds=100.0, seed=1)
    assert {each.decode.branches for each in few.requests if each.decode} == {4}
    assert [each.decode.branches for each in many.requests if each.decode][-20:] == [1] * 20


def test_rates_and_cost_are_of_the_counted_seconds() -> None:
    fields = {"seconds": 1000.0, "warm_up_seconds": 500.0, "price_per_hour": 3.6, "deadline_seconds": 0.45}
    found = run(STEPS, costs_of(), load=0.2, **fields, slots=4)
    told = point(found, **fields, slots=4)
    late = [each for each in found.requests if each.outcome == "answered" and each.ended and each.ended >= 500]
    good = [each for each in late if each.ended and each.ended - each.arrived <= 0.45]
    assert 0 < len(good) < len(late)
    assert told.answers_per_second == len(late) / 500
    assert told.good_answers_per_second == len(good) / 500
    assert told.good_tokens_per_second == 10 * len(good) / 500
    assert told.cost_per_million_tokens == pytest.approx(0.001 / told.good_tokens_per_second * 1e6)


def point(found: Simulated, **fields: Any) -> Point:
    return point_of_run(scenario_of(**fields), 1.0, 1, found)
