"""A simulated fleet as tables for readers."""

from lopa.bench.fleet.point import FleetReport, Point, Times, best_points
from lopa.bench.table import Table


def tables_of_fleet(report: FleetReport) -> list[Table]:
    """Every point, and for each load the number of branches that serves it best."""
    scenario = report.scenario
    limit = scenario.deadline_seconds
    good = "" if limit is None else f"; good: within {limit:g} s"
    title = (
        f"{scenario.replicas} x {scenario.slots} slots, {scenario.routing} routing, "
        f"{scenario.arrivals.process} arrivals, {report.prompts} prompts of {report.bundle}, "
        f"{scenario.seconds:g} s each{good}"
    )
    best = Table(
        "What serves each load best",
        ("requests/s", "branches", "good tokens/s", "whole answer, ms", "cost/M tokens"),
        tuple(
            (f"{each.load:g}", str(each.branches), f"{each.good_tokens_per_second:.0f}", _ms(each.whole), _cost(each))
            for each in best_points(report)
        ),
    )
    return [Table(title, _COLUMNS, tuple(map(_row, report.points))), best]


_COLUMNS = (
    "requests/s, branches",
    "good/s",
    "tokens/s",
    "good tokens/s",
    "waiting, ms",
    "whole answer, ms",
    "refused",
    "lost",
    "busy",
    "in a round",
    "cost/M tokens",
)


def _row(point: Point) -> tuple[str, ...]:
    return (
        f"{point.load:g}, {point.branches}",
        f"{point.good_answers_per_second:.2f}",
        f"{point.tokens_per_second:.0f}",
        f"{point.good_tokens_per_second:.0f}",
        _ms(point.waiting),
        _ms(point.whole),
        f"{point.refused_share:.1%}",
        f"{point.lost_share:.1%}",
        f"{point.busy_share:.0%}",
        f"{point.requests_a_round:.1f}",
        _cost(point),
    )


def _ms(times: Times) -> str:
    """Median / 99th percentile."""
    return "-" if times.p50 is None or times.p99 is None else f"{1e3 * times.p50:.0f} / {1e3 * times.p99:.0f}"


def _cost(point: Point) -> str:
    return "-" if point.cost_per_million_tokens is None else f"{point.cost_per_million_tokens:.3g}"
