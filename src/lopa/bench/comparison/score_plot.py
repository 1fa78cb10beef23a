"""Plots of score against speed with 95 % intervals and a bold Pareto front (Figure 4 of the paper, and per second), as
PNG files. matplotlib is an optional dependency.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.bench.comparison.paired_statistics import Interval, pareto_front
from lopa.bench.comparison.quality_figures import Row
from lopa.bench.comparison.quality_table import QualityReport
from lopa.bench.comparison.tuning_report import TuningReport
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install


def check_matplotlib() -> None:
    """Raise MissingBackendError unless matplotlib is installed, before a long measurement starts."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingBackendError(
            "--plot needs matplotlib, which is not installed",
            expected="matplotlib",
            remedy=f"{pip_install('plot')}, or omit --plot",
        ) from error


def png_from_figure(figure: Any) -> bytes:
    """Return a matplotlib figure as a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


_MAX_NAMES = 12
"""Maximum number of configurations with a label each. With more, only the Pareto front is labelled."""
_FRONT, _GREY = "C0", "0.72"


@dataclass(frozen=True)
class Point:
    """A configuration. Scores are shares from 0 to 1."""

    speed: float
    speed_interval: Interval | None
    score: float
    score_interval: Interval
    on_front: bool
    label: str
    """Text beside the point, or ""."""
    curve: str
    """Name of the line that connects the point with others, or "" for none."""


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    speed: str
    """Text of the speed axis."""
    score: str
    """Text of the score axis."""
    points: tuple[Point, ...]


def panels_of_quality(report: QualityReport) -> list[Panel]:
    """Return a panel per scored kind and speed. The report must contain scored prompts."""
    kinds = list(dict.fromkeys(row.kind for row in report.rows if row.measure.score is not None))
    return [
        Panel(
            f"{report.run.bundle}: quality against {name}" + (f", {kind}" if len(kinds) > 1 else ""),
            f"tokens per {unit}, up to end-of-text",
            f"correct answers of {rows[0].measure.prompts}, %",
            _points_of_rows(rows, f"tokens_per_{unit}"),
        )
        for kind in kinds
        if (rows := [row for row in report.rows if row.kind == kind])
        for name, unit in (("parallelism", "forward"), ("speed", "second"))
    ]


def panel_of_tuning(report: TuningReport) -> Panel:
    """Return a panel of the compared configurations. Presets are labelled."""
    names = {row.config: row.preset for row in report.presets}
    points = tuple(
        Point(
            speed=row.speed,
            speed_interval=None,
            score=row.score,
            score_interval=row.score_interval,
            on_front=row.on_front,
            label=f"{names[row.config]}: {row.config}" if row.config in names else "" if row.difference else row.config,
            curve="",
        )
        for row in report.rows
        if row.verdict is not None or row.difference is None or row.on_front
    )
    title = f"{report.run.bundle} on {report.run.device}"
    return Panel(title, "tokens per second, in multiples of the defaults", f"{report.scoring}, %", points)


def png_from_panels(panels: Sequence[Panel]) -> bytes:
    """Draw a PNG file with two panels per row, or one panel. Fronts are bold."""
    from matplotlib.figure import Figure

    columns, few = min(2, len(panels)), len(panels[0].points) <= _MAX_NAMES
    rows, (width, height) = len(panels) // columns, (7.2, 4.8) if few else (9.6, 6.4)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    for number, panel in enumerate(panels, start=1):
        draw_panel(figure.add_subplot(rows, columns, number), panel)
    return png_from_figure(figure)


def draw_panel(axes: Any, panel: Panel) -> None:
    """Draw a panel. A line connects the configurations of one curve, and another one the Pareto front."""
    by_speed = sorted(panel.points, key=lambda point: point.speed)
    for curve in dict.fromkeys(point.curve for point in by_speed):
        points = [point for point in by_speed if point.curve == curve]
        form = "o-" if curve else "o"
        _draw_points(axes, points, fmt=form, color=_GREY, linewidth=0.8, markersize=3, elinewidth=0.4, zorder=1)
    front = [point for point in by_speed if point.on_front]
    _draw_points(axes, front, fmt="o-", color=_FRONT, linewidth=2.4, markersize=6, elinewidth=0.8, zorder=3)
    for point in panel.points:
        axes.annotate(
            point.label,
            (point.speed, 100 * point.score),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=9 if point.on_front else 8,
            fontweight="bold" if point.on_front else "normal",
            color="black" if point.on_front else "grey",
            zorder=4,
        )
    axes.plot([], [], "o-", color=_FRONT, linewidth=2.4, label="Pareto front")
    axes.plot([], [], "o-", color=_GREY, linewidth=0.8, markersize=3, label="other configurations")
    axes.legend(fontsize=8)
    axes.margins(x=0.08, y=0.1)
    axes.set_xlabel(panel.speed)
    axes.set_ylabel(panel.score)
    axes.set_title(panel.title)
    axes.grid(alpha=0.3)


def _points_of_rows(rows: Sequence[Row], speed: str) -> tuple[Point, ...]:
    """Return the points of scored rows. `speed` names the field of Measure."""
    values = [(getattr(row.measure, speed), row.measure.score.share) for row in rows if row.measure.score is not None]
    front, few = pareto_front(values), len(rows) <= _MAX_NAMES
    return tuple(
        Point(
            speed=getattr(row.measure, speed),
            speed_interval=getattr(row.measure, f"{speed}_interval"),
            score=score.share,
            score_interval=Interval(score.low, score.high),
            on_front=number in front,
            label=row.config if few or number in front else "",
            curve=row.curve,
        )
        for number, row in enumerate(rows)
        if (score := row.measure.score) is not None
    )


def _draw_points(axes: Any, points: Sequence[Point], **style: Any) -> None:
    speeds = [_bar(point.speed, point.speed_interval) for point in points]
    scores = [_bar(100 * point.score, point.score_interval, 100) for point in points]
    axes.errorbar(
        [point.speed for point in points],
        [100 * point.score for point in points],
        list(zip(*scores, strict=True)) or None,
        list(zip(*speeds, strict=True)) or None,
        capsize=2,
        **style,
    )


def _bar(value: float, interval: Interval | None, factor: float = 1.0) -> tuple[float, float]:
    """Return the lower and upper length of an error bar, 0 without an interval."""
    return (0.0, 0.0) if interval is None else (value - factor * interval.low, factor * interval.high - value)
