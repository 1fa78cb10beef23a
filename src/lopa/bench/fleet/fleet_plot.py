"""Plot of goodput and answer time against the load, with a line per number of branches."""

from typing import Any

from lopa.bench.figure import png_from_figure
from lopa.bench.fleet.point import FleetReport


def png_from_fleet(report: FleetReport) -> bytes:
    """Return the plot as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.8, 4.6), layout="constrained")
    rates, times = figure.subplots(1, 2)
    for branches in report.scenario.branches:
        points = [point for point in report.points if point.branches == branches]
        loads = [point.load for point in points]
        style: dict[str, Any] = {"marker": ".", "label": "1 branch" if branches == 1 else f"{branches} branches"}
        rates.plot(loads, [point.good_tokens_per_second for point in points], **style)
        (line,) = times.plot(loads, [point.whole.p50 or float("nan") for point in points], **style)
        times.plot(loads, [point.whole.p99 or float("nan") for point in points], color=line.get_color(), ls=":", lw=1)
    for axes in (rates, times):
        axes.set_xscale("log")
        axes.set_xticks(report.scenario.loads, [f"{load:g}" for load in report.scenario.loads])
        axes.minorticks_off()
        axes.set_xlabel("requests per second, whole fleet")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    rates.set_ylabel("goodput, tokens per second")
    rates.set_ylim(bottom=0)
    times.set_yscale("log")
    times.set_ylabel("seconds per answer (solid: median, dotted: p99)")
    figure.suptitle(f"{report.scenario.replicas} replicas, {report.scenario.arrivals.process} arrivals")
    return png_from_figure(figure)
