"""Plot of score against speed per configuration with a bold Pareto front (Figure 4 of the paper, and per second)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lopa.bench.figure import png_from_figure
from lopa.bench.quality.intervals import Interval
from lopa.bench.quality.pareto import pareto_front
from lopa.bench.quality.quality_figures import Measure, Row
from lopa.bench.quality.quality_report import QualityReport

_MAX_NAMES = 12
"""Maximum number of configurations with a label each. With more, only the Pareto front is labelled."""
_FRONT, _GREY = "C0", "0.72"


@dataclass(frozen=True)
class Speed:
    """Speed axis of a plot."""

    name: str
    label: str
    of: Callable[[Measure], float]
    interval: Callable[[Measure], Interval | None]


PER_FORWARD = Speed(
    "parallelism",
    "tokens per forward, up to end-of-text",
    lambda measure: measure.tokens_per_forward,
    lambda measure: measure.tokens_per_forward_interval,
)
PER_SECOND = Speed(
    "speed",
    "tokens per second, up to end-of-text",
    lambda measure: measure.tokens_per_second,
    lambda measure: measure.tokens_per_second_interval,
)


def png_from_quality(report: QualityReport, speeds: Sequence[Speed] = (PER_FORWARD, PER_SECOND)) -> bytes:
    """Draw a PNG file with a panel per scored kind and speed. The Pareto front is bold, other points are grey.

    Bars are 95 % intervals, and dashed lines are accuracy bounds. The report must contain scored prompts.
    """
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row.kind for row in report.rows if row.default.score is not None))
    few = len([row for row in report.rows if row.kind == kinds[0]]) <= _MAX_NAMES
    width, height = (7.2, 4.8) if few else (9.6, 6.4)
    figure = Figure(figsize=(width * len(speeds), height * len(kinds)), layout="constrained")
    panels = [(kind, speed) for kind in kinds for speed in speeds]
    for number, (kind, speed) in enumerate(panels, start=1):
        axes = figure.add_subplot(len(kinds), len(speeds), number)
        _draw(axes, [row for row in report.rows if row.kind == kind], speed, few=few)
        axes.set_title(f"{report.run.bundle}: quality against {speed.name}" + (f", {kind}" if len(kinds) > 1 else ""))
    return png_from_figure(figure)


def _draw(axes: Any, rows: list[Row], speed: Speed, *, few: bool) -> None:
    front = [rows[i] for i in pareto_front([(speed.of(row.default), _score_percent(row)) for row in rows])]
    for name in dict.fromkeys(row.curve for row in rows):
        curve = sorted((row for row in rows if row.curve == name), key=lambda row: speed.of(row.default))
        _draw_rows(axes, curve, speed, fmt="o-", color=_GREY, linewidth=0.8, markersize=3, elinewidth=0.4, zorder=1)
        limited = [(speed.of(row.default), 100 * row.default.limit) for row in curve if row.default.limit is not None]
        if limited:
            axes.plot(*zip(*limited, strict=True), "--x", color=_GREY, linewidth=0.8, zorder=1)
    _draw_rows(axes, front, speed, fmt="o-", color=_FRONT, linewidth=2.4, markersize=6, elinewidth=0.8, zorder=3)
    for row in rows if few else front:
        bold = row in front
        axes.annotate(
            row.config,
            (speed.of(row.default), _score_percent(row)),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=9 if bold else 8,
            fontweight="bold" if bold else "normal",
            color="black" if bold else "grey",
            zorder=4,
        )
    _add_legend(axes, limited=any(row.default.limit is not None for row in rows))
    axes.margins(x=0.08, y=0.1)
    axes.set_xlabel(speed.label)
    axes.set_ylabel(f"correct answers of {rows[0].default.prompts}, %")
    axes.grid(alpha=0.3)


def _draw_rows(axes: Any, rows: list[Row], speed: Speed, **style: Any) -> None:
    speeds, scores = [speed.of(row.default) for row in rows], [_score_percent(row) for row in rows]
    axes.errorbar(speeds, scores, _score_bars(rows), _speed_bars(rows, speed), capsize=2, **style)


def _add_legend(axes: Any, *, limited: bool) -> None:
    """Explain bold, grey and dashed lines. A line connects the configurations of one curve."""
    axes.plot([], [], "o-", color=_FRONT, linewidth=2.4, label="Pareto front")
    axes.plot([], [], "o-", color=_GREY, linewidth=0.8, markersize=3, label="other configurations")
    if limited:
        axes.plot([], [], "--x", color=_GREY, linewidth=0.8, label="bound of independent decisions")
    axes.legend(fontsize=8)


def _score_percent(row: Row) -> float:
    return 100 * row.default.score.share if row.default.score is not None else 0.0


def _score_bars(rows: list[Row]) -> tuple[list[float], list[float]]:
    """Return the error bars of the scores in percent: lower and upper lengths."""
    scores = [row.default.score for row in rows if row.default.score is not None]
    return [100 * (each.share - each.low) for each in scores], [100 * (each.high - each.share) for each in scores]


def _speed_bars(rows: list[Row], speed: Speed) -> tuple[list[float], list[float]]:
    """Return the error bars of the speeds: lower and upper lengths, 0 with a single prompt."""
    speeds = [(speed.of(row.default), speed.interval(row.default)) for row in rows]
    low = [0.0 if interval is None else found - interval.low for found, interval in speeds]
    return low, [0.0 if interval is None else interval.high - found for found, interval in speeds]
