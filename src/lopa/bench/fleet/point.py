"""Figures of a simulated load: shares, rates, percentiles and costs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lopa.bench.fleet.fleet import FleetRun, simulate_fleet
from lopa.bench.fleet.replica import RequestOutcome, SimulatedRequest
from lopa.bench.fleet.round_costs import costs_of_material
from lopa.bench.fleet.scenario import Material, Scenario
from lopa.bench.progress import BenchProgress, silent

_NEARLY_BEST = 0.99
"""Share of the best goodput above which numbers of branches count as equal. A smaller difference is within the
noise."""


@dataclass(frozen=True)
class Times:
    """Percentiles in seconds, or None without answers."""

    p50: float | None
    p99: float | None


@dataclass(frozen=True)
class LoadPoint:
    """Figures for one load and number of branches. Rates are for the whole fleet after the warm-up."""

    load: float
    """Requests per second."""
    branches: int
    arrived: int
    """Requests of the whole run, including the warm-up. It is the sum of the next four fields."""
    answered: int
    refused: int
    lost: int
    on_their_way: int
    """Requests without an outcome at the end."""
    answers_per_second: float
    good_answers_per_second: float
    """Answers per second within the deadline."""
    tokens_per_second: float
    good_tokens_per_second: float
    waiting: Times
    """Seconds from arrival to the first round."""
    whole: Times
    """Seconds from arrival to the complete answer."""
    refused_share: float
    """Share of rejected requests among all requests that ended after the warm-up."""
    lost_share: float
    restarts: int
    """Number of times that a request was started again on another replica."""
    prompts_known_share: float
    """Share of answers whose prompt rows were cached."""
    busy_share: float
    """Share of the replicas' time spent in rounds."""
    requests_a_round: float
    forward_seconds_a_row: float | None
    """Mean forward seconds per row."""
    host_seconds_a_step: float | None
    """Mean seconds of a request's step outside its forward."""
    cost_per_million_tokens: float | None
    """Cost of a million good tokens, or None without a price or good tokens."""


@dataclass(frozen=True)
class FleetReport:
    """A scenario and its points."""

    scenario: Scenario
    bundle: str
    """Bundle of the recorded decodes."""
    prompts: int
    """Number of recorded prompts."""
    points: tuple[LoadPoint, ...]


def fleet_report(material: Material, progress: BenchProgress = silent) -> FleetReport:
    """Simulate every load with every number of branches. `progress` receives the number of finished points."""
    scenario, costs = material.scenario, costs_of_material(material)
    points: list[LoadPoint] = []
    for load in scenario.loads:
        for branches in scenario.branches:
            points.append(point_of_run(scenario, load, branches, simulate_fleet(material, costs, load, branches)))
            progress(len(points))
    decodes = material.decodes
    return FleetReport(scenario, decodes.bundle, len(decodes.prompts), tuple(points))


def best_points(report: FleetReport) -> list[LoadPoint]:
    """Return for each load the point with the lowest median time among the points with nearly the best goodput."""
    best = []
    for load in report.scenario.loads:
        points = [point for point in report.points if point.load == load]
        best_rate = max(point.good_tokens_per_second for point in points)
        in_time = [point for point in points if point.good_tokens_per_second >= _NEARLY_BEST * best_rate]
        best.append(min(in_time, key=lambda point: np.inf if point.whole.p50 is None else point.whole.p50))
    return best


def point_of_run(scenario: Scenario, load: float, branches: int, run: FleetRun) -> LoadPoint:
    """Return the figures of a run. Only requests that end after the warm-up count."""
    counted_seconds = scenario.seconds - scenario.warm_up_seconds
    counted = [each for each in run.requests if each.ended is not None and each.ended >= scenario.warm_up_seconds]
    answers = [each for each in counted if each.outcome == "answered"]
    whole = [_whole(each, scenario) for each in answers]
    limit = np.inf if scenario.deadline_seconds is None else scenario.deadline_seconds
    in_time = [each for each, seconds in zip(answers, whole, strict=True) if seconds <= limit]
    good_rate = _tokens(in_time) / counted_seconds
    price = scenario.price_per_hour
    rounds = sum(work.rounds for work in run.replicas)
    return LoadPoint(
        load=load,
        branches=branches,
        arrived=len(run.requests),
        answered=_count(run.requests, "answered"),
        refused=_count(run.requests, "refused"),
        lost=_count(run.requests, "lost"),
        on_their_way=_count(run.requests, "on its way"),
        answers_per_second=len(answers) / counted_seconds,
        good_answers_per_second=len(in_time) / counted_seconds,
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


def _whole(request: SimulatedRequest, scenario: Scenario) -> float:
    assert request.ended is not None
    return request.ended - request.arrived + scenario.request_seconds


def _tokens(answers: Sequence[SimulatedRequest]) -> int:
    return sum(each.decode.tokens for each in answers if each.decode is not None)


def _count(requests: Sequence[SimulatedRequest], outcome: RequestOutcome) -> int:
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
