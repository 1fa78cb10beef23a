"""Report of a measured cost table with the machine's roofline."""

from dataclasses import dataclass

from lopa.bench.forward.machine_rates import MachineRates
from lopa.bench.forward.work import ForwardShape, floor_seconds, work_of_forward
from lopa.bench.report import Run
from lopa.bench.table import Table, ms_text, ratio_text, table_from_records
from lopa.runtime.bundle.costs import DeviceCosts, ForwardCost
from lopa.runtime.bundle.manifest import Manifest


@dataclass(frozen=True)
class RoofedCost:
    """One point of the cost table."""

    branches: int
    window: int
    prefix: int
    seconds: float
    floor: float | None
    """Minimum seconds at the machine's rates, or None if the rates were not measured."""


@dataclass(frozen=True)
class CostsReport:
    """Report of `lopa-export bench costs`."""

    benchmark: str
    run: Run
    rates: MachineRates | None
    """Rates of the CPU, or None for another device."""
    host_seconds: float
    host_seconds_a_branch: float
    points: tuple[RoofedCost, ...]


def report_from_costs(costs: DeviceCosts, run: Run, rates: MachineRates | None, manifest: Manifest) -> CostsReport:
    """Return the report with the roofline of each point."""
    points = tuple(
        RoofedCost(point.branches, point.window, point.prefix, point.seconds, _floor(point, rates, manifest))
        for point in costs.points
    )
    return CostsReport("costs", run, rates, costs.host_seconds, costs.host_seconds_a_branch, points)


def tables_from_costs(report: CostsReport) -> list[Table]:
    """Return a table of the machine's rates, and one of all points with their rooflines."""
    where = f"{report.run.device}, {_threads(report.run.threads)}, {report.run.machine.cpu}"
    return [*_rates_table(report.rates, where), _points_table(report, where)]


def _rates_table(rates: MachineRates | None, where: str) -> list[Table]:
    if rates is None:
        return []
    return [
        Table(
            title=f"Machine rates: {where}",
            columns=("limit", "rate"),
            rows=(
                ("float32 products", f"{rates.float32 / 1e9:.0f} GFLOP/s"),
                ("int8 products", f"{rates.int8 / 1e9:.0f} GOP/s"),
                ("memory, large copy, read + write", f"{rates.bandwidth / 1e9:.1f} GB/s"),
            ),
        )
    ]


def _points_table(report: CostsReport, where: str) -> Table:
    return table_from_records(
        f"Milliseconds of a forward that samples all positions: {where}; host time per step "
        f"{report.host_seconds * 1e3:.2f} ms + {report.host_seconds_a_branch * 1e3:.2f} ms per further branch",
        report.points,
        {
            "branches x window, prefix": lambda point: f"{point.branches} x {point.window}, {point.prefix}",
            "floor": lambda point: ms_text(point.floor),
            "median": lambda point: ms_text(point.seconds),
            "median / floor": lambda point: "-" if point.floor is None else ratio_text(point.seconds, point.floor),
        },
    )


def _floor(point: ForwardCost, rates: MachineRates | None, manifest: Manifest) -> float | None:
    if rates is None:
        return None
    shape = ForwardShape(point.branches, point.window, point.prefix, wanted=point.window)
    return floor_seconds(work_of_forward(manifest, shape), rates)


def _threads(threads: int | None) -> str:
    return "the engine's default threads" if threads is None else f"{threads} thread(s)"
