"""Score against tokens per forward, one point for each configuration, as in the paper's Figure 4."""

from typing import Any

from lopa.bench.figure import png_from_figure
from lopa.bench.quality.measure import Row
from lopa.bench.quality.report import QualityReport

_MOST_NAMES = 12
"""Configurations that have their names beside their points; of more, curves have theirs in a legend."""
_COLOURS = 10


def png_from_quality(report: QualityReport) -> bytes:
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
        _draw(axes, [row for row in report.rows if row.kind == kind], few=few)
        axes.set_title(f"{report.run.bundle}: quality against parallelism" + (f", {kind}" if len(kinds) > 1 else ""))
    return png_from_figure(figure)


def _draw(axes: Any, rows: list[Row], *, few: bool) -> None:
    for number, name in enumerate(dict.fromkeys(row.curve for row in rows)):
        curve = sorted((row for row in rows if row.curve == name), key=_across)
        across, up = [_across(row) for row in curve], [_up(row) for row in curve]
        wide, tall = _bars_across(curve), _bars_up(curve)
        style, colour = "o-" if number < _COLOURS else "s--", f"C{number % _COLOURS}"
        axes.errorbar(across, up, tall, wide, fmt=style, color=colour, capsize=2, elinewidth=0.6, label=name)
        limited = [(_across(row), 100 * row.default.limit) for row in curve if row.default.limit is not None]
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
    axes.set_xlabel("tokens per forward, up to the end of the text")
    axes.set_ylabel(f"right answers of {rows[0].default.prompts}, %")
    axes.grid(alpha=0.3)


def _across(row: Row) -> float:
    return row.default.tokens_per_forward


def _up(row: Row) -> float:
    return 100 * row.default.score.share if row.default.score is not None else 0.0


def _bars_up(rows: list[Row]) -> tuple[list[float], list[float]]:
    """Percent from the scores down to their least and up to their most."""
    scores = [row.default.score for row in rows if row.default.score is not None]
    return [100 * (each.share - each.low) for each in scores], [100 * (each.high - each.share) for each in scores]


def _bars_across(rows: list[Row]) -> tuple[list[float], list[float]]:
    """Tokens per forward down to their least and up to their most; none of a single prompt."""
    speeds = [(row.default.tokens_per_forward, row.default.tokens_per_forward_interval) for row in rows]
    low = [0.0 if likely is None else speed - likely.low for speed, likely in speeds]
    return low, [0.0 if likely is None else likely.high - speed for speed, likely in speeds]
