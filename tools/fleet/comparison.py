"""Measured loads beside simulated ones, for readers."""

from dataclasses import dataclass

from lopa.bench.fleet.point import Point, Times
from lopa.bench.fleet.scenario import Scenario
from lopa.bench.report import Run
from lopa.bench.table import Table
from tools.fleet.measure import MeasuredLoad


@dataclass(frozen=True)
class Comparison:
    """One load with one number of branches."""

    measured: MeasuredLoad
    simulated: Point


@dataclass(frozen=True)
class FleetComparison:
    """All of a scenario."""

    run: Run
    scenario: Scenario
    loads: tuple[Comparison, ...]


def table_of_comparison(report: FleetComparison) -> Table:
    """Measured / simulated, and the error of the simulation as a share of what was measured."""
    scenario = report.scenario
    return Table(
        f"{scenario.replicas} server(s), a core each: measured / simulated (error); {scenario.slots} slots, "
        f"{scenario.queue} places, {scenario.routing} routing, {scenario.seconds:g} s",
        (
            "requests/s, branches",
            "answers",
            "answers/s",
            "tokens/s",
            "median, ms",
            "99 %, ms",
            "refused",
            "us a row",
            "ms a step outside",
        ),
        tuple(map(_row, report.loads)),
    )


def _row(each: Comparison) -> tuple[str, ...]:
    found, said = each.measured, each.simulated
    return (
        f"{found.load:g}, {found.branches}",
        str(found.answers),
        _pair(found.answers_per_second, said.answers_per_second, ".2f"),
        _pair(found.tokens_per_second, said.tokens_per_second, ".0f"),
        _pair(_ms(found.whole, "p50"), _ms(said.whole, "p50"), ".0f"),
        _pair(_ms(found.whole, "p99"), _ms(said.whole, "p99"), ".0f"),
        f"{found.refused_share:.1%} / {said.refused_share:.1%}",
        _pair(1e6 * found.forward_seconds_a_row, 1e6 * (said.forward_seconds_a_row or 0.0), ".1f"),
        _pair(1e3 * found.host_seconds_a_step, 1e3 * (said.host_seconds_a_step or 0.0), ".2f"),
    )


def _pair(found: float, said: float, form: str) -> str:
    return f"{found:{form}} / {said:{form}} ({(said - found) / found:+.0%})"


def _ms(times: Times, name: str) -> float:
    """In milliseconds; not a number where there is no answer."""
    seconds = getattr(times, name)
    return float("nan") if seconds is None else 1e3 * float(seconds)
