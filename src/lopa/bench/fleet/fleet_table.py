"""Tables of a simulated fleet."""

from lopa.bench.fleet.point import FleetReport, LoadPoint, Times, best_points
from lopa.bench.table import MISSING, Table, table_from_records


def tables_of_fleet(report: FleetReport) -> list[Table]:
    """Return a table of all points, and one of the best number of branches per load."""
    scenario = report.scenario
    limit = scenario.deadline_seconds
    deadline = "" if limit is None else f"; good: answered within {limit:g} s"
    every = table_from_records(
        f"{scenario.replicas} x {scenario.slots} slots, {scenario.routing} routing, "
        f"{scenario.arrivals.process} arrivals, {report.prompts} prompts of {report.bundle}, "
        f"{scenario.seconds:g} s each{deadline}",
        report.points,
        {
            "requests/s, branches": lambda point: f"{point.load:g}, {point.branches}",
            "good/s": lambda point: f"{point.good_answers_per_second:.2f}",
            "tokens/s": lambda point: f"{point.tokens_per_second:.0f}",
            "good tokens/s": lambda point: f"{point.good_tokens_per_second:.0f}",
            "waiting, ms (p50 / p99)": lambda point: _ms(point.waiting),
            "answer, ms (p50 / p99)": lambda point: _ms(point.whole),
            "refused": lambda point: f"{point.refused_share:.1%}",
            "lost": lambda point: f"{point.lost_share:.1%}",
            "utilization": lambda point: f"{point.busy_share:.0%}",
            "requests/round": lambda point: f"{point.requests_a_round:.1f}",
            "cost/M tokens": _cost,
        },
    )
    best = table_from_records(
        "Best number of branches per load",
        best_points(report),
        {
            "requests/s": lambda point: f"{point.load:g}",
            "branches": lambda point: str(point.branches),
            "good tokens/s": lambda point: f"{point.good_tokens_per_second:.0f}",
            "answer, ms (p50 / p99)": lambda point: _ms(point.whole),
            "cost/M tokens": _cost,
        },
    )
    return [every, best]


def _ms(times: Times) -> str:
    """Return the text "median / 99th percentile" in milliseconds."""
    return MISSING if times.p50 is None or times.p99 is None else f"{1e3 * times.p50:.0f} / {1e3 * times.p99:.0f}"


def _cost(point: LoadPoint) -> str:
    return MISSING if point.cost_per_million_tokens is None else f"{point.cost_per_million_tokens:.3g}"
