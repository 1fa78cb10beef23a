"""Report of a measured cost table."""

from dataclasses import dataclass

from lopa.bench.report import Run
from lopa.bench.table import Table, ms_text, table_from_records
from lopa.runtime.bundle.costs import DeviceCosts, ForwardCost


@dataclass(frozen=True)
class CostsReport:
    """Report of `lopa-export bench costs`."""

    benchmark: str
    run: Run
    host_seconds: float
    host_seconds_a_branch: float
    points: tuple[ForwardCost, ...]


def report_from_costs(costs: DeviceCosts, run: Run) -> CostsReport:
    """Return the report of the table `costs`."""
    return CostsReport("costs", run, costs.host_seconds, costs.host_seconds_a_branch, tuple(costs.points))


def table_from_costs(report: CostsReport) -> Table:
    """Return a table of all points."""
    threads = report.run.threads
    used = "the engine's default threads" if threads is None else f"{threads} thread(s)"
    return table_from_records(
        f"Milliseconds of a forward that samples all positions: {report.run.device}, {used}, {report.run.machine.cpu}; "
        f"host time per step {report.host_seconds * 1e3:.2f} ms + {report.host_seconds_a_branch * 1e3:.2f} ms per "
        "further branch",
        report.points,
        {
            "branches x window, prefix": lambda point: f"{point.branches} x {point.window}, {point.prefix}",
            "median": lambda point: ms_text(point.seconds),
        },
    )
