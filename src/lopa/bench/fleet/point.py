"""What a simulated load comes to: shares, rates, percentiles, costs. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lopa.bench.fleet.costs import costs_of_material
from lopa.bench.fleet.fleet import Simulated, simulated
from lopa.bench.fleet.replica import Asked, Outcome
from lopa.bench.fleet.scenario import Material, Scenario
from lopa.bench.progress import Progress, silent

_AS_MUCH = 0.99
"""Of the most good tokens a second: less than a hundredth lies within the chance of a run."""


@dataclass(frozen=True)
class Times:
    """Percentiles in seconds; None where no answer is."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True)
class Point:
    """One load with one number of branches. Rates are of the counted seconds and of the whole fleet."""

    load: float
    """Requests a second."""
    branches: int
    arrived: int
    """Requests in all the seconds, warm-up included: the sum of the four below."""
    answered: int
    refused: int
    lost: int
    on_their_way: int
    """At the end."""
    answers_per_second: float
    good_answers_per_second: float
    """Within the deadline."""
    tokens_per_second: float
    good_tokens_per_second: float
    waiting: Times
    """From the first asking to the first round."""
    whole: Times
    """From the first asking to the whole answer."""
    refused_share: float
    """Of what ended while it was counted."""
    lost_share: float
    restarts: int
    """Answers and others that began again on another replica."""
    prompts_known_share: float
    """Of the answers, those whose prompt's rows were there."""
    busy_share: float
    """Of the replicas' time, rounds."""
    requests_a_round: float
    forward_seconds_a_row: float | None
    """Of the rounds' forwards."""
    host_seconds_a_step: float | None
    """Of a request's step, beyond its forward."""
    cost_per_million_tokens: float | None
    """Of good tokens; None without a price or without such tokens."""


@dataclass(frozen=True)
class FleetReport:
    """A scenario and every point of it."""

    scenario: Scenario
    bundle: str
    """Of the recorded decodes."""
    prompts: int
    """That were recorded."""
    points: tuple[Point, ...]


def fleet_report(material: Material, progress: Progress = silent) -> FleetReport:
    """Every load with every number of branches. `progress` hears how many points are there."""
    scenario, costs = material.scenario, costs_of_material(material)
    points: list[Point] = []
    for load in scenario.loads:
        for branches in scenario.branches:
            points.append(point_of_run(scenario, load, branches, simulated(material, costs, load, branches)))
            progress(len(points))
    decodes = material.decodes
    return FleetReport(scenario, decodes.bundle, len(decodes.prompts), tuple(points))


def best_points(report: FleetReport) -> list[Point]:
    """Of every load the point with the least median time among those with about the most good tokens a second."""
    best = []
    for load in report.scenario.loads:
        points = [point for point in report.points if point.load == load]
        best_rate = max(point.good_tokens_per_second for point in points)
        good = [point for point in points if point.good_tokens_per_second >= _AS_MUCH * best_rate]
        best.append(min(good, key=lambda point: np.inf if point.whole.p50 is None else point.whole.p50))
    return best


def point_of_run(scenario: Scenario, load: float, branches: int, run: Simulated) -> Point:
    """Counts what ended after the warm-up."""
    counted_seconds = scenario.seconds - scenario.warm_up_seconds
    counted = [each for each in run.requests if each.ended is not None and each.ended >= scenario.warm_up_seconds]
    answers = [each for each in counted if each.outcome == "answered"]
    whole = [_whole(each, scenario) for each in answers]
    limit = np.inf if scenario.deadline_seconds is None else scenario.deadline_seconds
    good = [each for each, seconds in zip(answers, whole, strict=True) if seconds <= limit]
    good_rate = _tokens(good) / counted_seconds
    price = scenario.price_per_hour
    rounds = sum(work.rounds for work in run.replicas)
    return Point(
        load=load,
        branches=branches,
        arrived=len(run.requests),
        answered=_count(run.requests, "answered"),
        refused=_count(run.requests, "refused"),
        lost=_count(run.requests, "lost"),
        on_their_way=_count(run.requests, "on its way"),
        answers_per_second=len(answers) / counted_seconds,
        good_answers_per_second=len(good) / counted_seconds,
        tokens_per_second=_tokens(answers) / counted_seconds,
        good_tokens_per_second=good_rate,
        waiting=_times([each.started - each.arrived for each in answers if each.started is not None]),
        whole=_times(whole),
        refused_share=_share(_count(counted, "refused"), len(counted)),
        lost_share=_share(_count(counted, "lost"), len(counted)),
        restarts=sum(each.restarts for each in run.requests),
        prompts_known_share=_share(sum(each.known for each in answers), len(answers)),
        busy_share=sum(work.busy_seconds for work in run.replicas) / (scenario.seconds * len(run.replicas)),
        requests_a_round=_share(sum(work.steps for work in run.replicas), rounds),
        forward_seconds_a_row=_ratio(
            sum(work.forward_seconds for work in run.replicas), sum(work.rows for work in run.replicas)
        ),
        host_seconds_a_step=_ratio(
            sum(work.host_seconds for work in run.replicas), sum(work.steps for work in run.replicas)
        ),
        cost_per_million_tokens=None
        if price is None or not good_rate
        else price * scenario.replicas / (3600 * good_rate) * 1e6,
    )


def _whole(asked: Asked, scenario: Scenario) -> float:
    assert asked.ended is not None
    return asked.ended - asked.arrived + scenario.request_seconds


def _tokens(answers: Sequence[Asked]) -> int:
    return sum(each.decode.tokens for each in answers if each.decode is not None)


def _count(requests: Sequence[Asked], outcome: Outcome) -> int:
    return sum(each.outcome == outcome for each in requests)


def _times(seconds: Sequence[float]) -> Times:
    if not seconds:
        return Times(None, None)
    p50, p99 = np.percentile(seconds, (50, 99)).tolist()
    return Times(p50, p99)


def _share(part: int, of: int) -> float:
    return part / of if of else 0.0


def _ratio(total: float, of: int) -> float | None:
    return total / of if of else None
