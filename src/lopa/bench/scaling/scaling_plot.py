"""Plot of tokens per second against devices, measured and projected, and of the parts of a step."""

from typing import Any

from lopa.bench.figure import png_from_figure
from lopa.bench.scaling.scaling_report import ScalingReport

_PARTS = ("engine", "gather", "select", "commit", "host")


def png_from_scaling(report: ScalingReport) -> bytes:
    """Return the plot as a PNG file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.8, 4.6), layout="constrained")
    rates, split = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_rates(rates, report)
    _draw_split(split, report)
    figure.suptitle(f"{report.run.bundle}: {report.settings['branches']} branches over devices of one core each")
    return png_from_figure(figure)


def _draw_rates(axes: Any, report: ScalingReport) -> None:
    for link in report.links:
        points = [each for each in report.projected if each.link == link.name]
        axes.plot(
            [each.devices for each in points],
            [each.tokens_per_second for each in points],
            marker=".",
            label=f"{link.name}, projected",
        )
    axes.plot(
        [each.devices for each in report.measured],
        [each.tokens_per_second for each in report.measured],
        "kx",
        markersize=8,
        label="measured",
    )
    axes.set_xscale("log", base=2)
    counts = sorted({each.devices for each in report.projected})
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("tokens per second")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _draw_split(axes: Any, report: ScalingReport) -> None:
    names = [str(each.devices) for each in report.measured]
    below = [0.0] * len(names)
    for part in _PARTS:
        heights = [1e3 * getattr(each.parts, part) for each in report.measured]
        axes.bar(names, heights, bottom=below, width=0.6, label=part)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.set_ylim(top=1.25 * max(below))  # space for the legend
    axes.set_xlabel("devices, measured")
    axes.set_ylabel("milliseconds per step, median of each part")
    axes.legend(fontsize=8, ncols=3, loc="upper center")
