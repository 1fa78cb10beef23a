"""Score against speed, one point for each configuration: against tokens per forward as in the paper's Figure 4."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lopa.bench.figure import png_from_figure
from lopa.bench.quality.intervals import Interval
from lopa.bench.quality.measure import Measure, Row
from lopa.bench.quality.report import QualityReport

_MOST_NAMES = 12
"""Configurations that have their names beside their points; of more, curves have theirs in a legend."""
_COLOURS = 10


@dataclass(frozen=True)
class Speed:
    """What a plot has from left to right."""

    name: str
    words: str
    of: Callable[[Measure], float]
    interval: Callable[[Measure], Interval | None]


PER_FORWARD = Speed(
    "parallelism",
    "tokens per forward, up to the end of the text",
    lambda measure: measure.tokens_per_forward,
    lambda measure: measure.tokens_per_forward_interval,
)
PER_SECOND = Speed(
    "speed",
    "tokens per second, up to the end of the text",
    lambda measure: measure.tokens_per_second,
    lambda measure: measure.tokens_per_second_interval,
)


def png_from_quality(report: QualityReport, speed: Speed = PER_FORWARD) -> bytes:
    """The PNG file, a picture for each scored kind; bars are the 95 % intervals both ways, dashes the limits.

    The report must have prompts that are scored.
    """
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row.kind for row in report.rows if row.default.score is not None))
    few = len([row for row in report.rows if row.kind == kinds[0]]) <= _MOST_NAMES
    width, height = (7.2, 4.8) if few else (9.6, 6.4)
    figure = Figure(figsize=(width, height * len(kinds)), layout="constrained")
    for number, kind in enumerate(kinds, start=1):
        axes = figure.add_subplot(len(kinds), 1, number)
        _draw(axes, [row for row in report.rows if row.kind == kind], speed, few=few)
        axes.set_title(f"{report.run.bundle}: quality against {speed.name}" + (f", {kind}" if len(kinds) > 1 else ""))
    return png_from_figure(figure)


def _draw(axes: Any, rows: list[Row], speed: Speed, *, few: bool) -> None:
    for number, name in enumerate(dict.fromkeys(row.curve for row in rows)):
        curve = sorted((row for row in rows if row.curve == name), key=lambda row: speed.of(row.default))
        across, up = [speed.of(row.default) for row in curve], [_up(row) for row in curve]
        wide, tall = _bars_across(curve, speed), _bars_up(curve)
        style, colour = "o-" if number < _COLOURS else "s--", f"C{number % _COLOURS}"
        axes.errorbar(across, up, tall, wide, fmt=style, color=colour, capsize=2, elinewidth=0.6, label=name)
        limited = [
            (x, 100 * row.default.limit) for x, row in zip(across, curve, strict=True) if row.default.limit is not None
        ]
        if limited:
            axes.plot(*zip(*limited, strict=True), "--x", color=colour, alpha=0.5, label=f"{name}: limit")
        for row, x, y, high in zip(curve, across, up, tall[1], strict=True):
            if few:
                axes.annotate(
                    row.config, (x, y + high), xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9
                )
    if not few or any(row.default.limit is not None for row in rows):
        axes.legend(fontsize=8, ncols=2)
    axes.margins(x=0.08, y=0.1)
    axes.set_xlabel(speed.words)
    axes.set_ylabel(f"right answers of {rows[0].default.prompts}, %")
    axes.grid(alpha=0.3)


def _up(row: Row) -> float:
    return 100 * row.default.score.share if row.default.score is not None else 0.0


def _bars_up(rows: list[Row]) -> tuple[list[float], list[float]]:
    """Percent from the scores down to their least and up to their most."""
    scores = [row.default.score for row in rows if row.default.score is not None]
    return [100 * (each.share - each.low) for each in scores], [100 * (each.high - each.share) for each in scores]


def _bars_across(rows: list[Row], speed: Speed) -> tuple[list[float], list[float]]:
    """The speeds down to their least and up to their most; none of a single prompt."""
    speeds = [(speed.of(row.default), speed.interval(row.default)) for row in rows]
    low = [0.0 if likely is None else found - likely.low for found, likely in speeds]
    return low, [0.0 if likely is None else likely.high - found for found, likely in speeds]
