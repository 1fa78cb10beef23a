"""A simulated fleet as tables for readers."""

from lopa.bench.fleet.point import FleetReport, Point, Times, best_points
from lopa.bench.table import NOTHING, Table, table_from_records


def tables_of_fleet(report: FleetReport) -> list[Table]:
    """Return all points, and for each load the number of branches that serves it best."""
    scenario = report.scenario
    limit = scenario.deadline_seconds
    good = "" if limit is None else f"; good: within {limit:g} s"
    every = table_from_records(
        f"{scenario.replicas} x {scenario.slots} slots, {scenario.routing} routing, "
        f"{scenario.arrivals.process} arrivals, {report.prompts} prompts of {report.bundle}, "
        f"{scenario.seconds:g} s each{good}",
        report.points,
        {
            "requests/s, branches": lambda point: f"{point.load:g}, {point.branches}",
            "good/s": lambda point: f"{point.good_answers_per_second:.2f}",
            "tokens/s": lambda point: f"{point.tokens_per_second:.0f}",
            "good tokens/s": lambda point: f"{point.good_tokens_per_second:.0f}",
            "waiting, ms": lambda point: _ms(point.waiting),
            "whole answer, ms": lambda point: _ms(point.whole),
            "refused": lambda point: f"{point.refused_share:.1%}",
            "lost": lambda point: f"{point.lost_share:.1%}",
            "busy": lambda point: f"{point.busy_share:.0%}",
            "in a round": lambda point: f"{point.requests_a_round:.1f}",
            "cost/M tokens": _cost,
        },
    )
    best = table_from_records(
        "What serves each load best",
        best_points(report),
        {
            "requests/s": lambda point: f"{point.load:g}",
            "branches": lambda point: str(point.branches),
            "good tokens/s": lambda point: f"{point.good_tokens_per_second:.0f}",
            "whole answer, ms": lambda point: _ms(point.whole),
            "cost/M tokens": _cost,
        },
    )
    return [every, best]


def _ms(times: Times) -> str:
    """Return median / 99th percentile."""
    return NOTHING if times.p50 is None or times.p99 is None else f"{1e3 * times.p50:.0f} / {1e3 * times.p99:.0f}"


def _cost(point: Point) -> str:
    return NOTHING if point.cost_per_million_tokens is None else f"{point.cost_per_million_tokens:.3g}"
