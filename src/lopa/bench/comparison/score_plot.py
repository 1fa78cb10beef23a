"""Plots of score against speed with 95 % intervals and the Pareto front (Figure 4 of the paper, and per second).

They are PNG, SVG or PDF files. Every strategy has its colour, marker and name. matplotlib is an optional dependency.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from lopa.bench.comparison.candidates import CONTROL
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


PLOT_FORMATS = ("png", "svg", "pdf")
_FONTS = {"pdf.fonttype": 42, "svg.fonttype": "none"}
"""Settings of matplotlib for text that publishers accept and editors can change: TrueType in PDF, text in SVG."""
_MAX_NAMES = 12
"""Maximum number of configurations with a label each, the part of the name that the legend does not have. With more,
only the Pareto front has labels, whole names.
"""
_FEW_COLORS, _MARKERS = 10, "osD^vP<>X"
_LEGEND_ROWS = 26
_SIDES = tuple(product((7, 16, 28), ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))))
"""Places of a label around its point: distance in points, and the side in x and y. The first is the best."""


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
    """Name in the legend, which points of one strategy share."""


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    speed: str
    """Text of the speed axis."""
    score: str
    """Text of the score axis."""
    points: tuple[Point, ...]
    has_lines: bool = True
    """True if a line connects the points of each strategy."""


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
            curve=row.options.get("strategy", CONTROL),
        )
        for row in report.rows
        if row.verdict is not None or row.difference is None or row.on_front
    )
    title, speed = f"{report.run.bundle} on {report.run.device}", "tokens per second, in multiples of the defaults"
    return Panel(title, speed, f"{report.scoring}, %", points, has_lines=False)


def plot_from_panels(panels: Sequence[Panel], form: str) -> bytes:
    """Draw a file in one of PLOT_FORMATS, with one panel or two per row, and a legend on the right."""
    import matplotlib
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(point.curve for panel in panels for point in panel.points))
    colors = matplotlib.colormaps["tab10" if len(names) <= _FEW_COLORS else "tab20"].colors  # type: ignore[attr-defined]
    styles = {name: (colors[i % len(colors)], _MARKERS[i % len(_MARKERS)]) for i, name in enumerate(names)}
    columns, few = min(2, len(panels)), len(panels[0].points) <= _MAX_NAMES
    rows, (width, height) = len(panels) // columns, (7.2, 4.8) if few else (9.6, 6.4)
    figure = Figure(figsize=(width * columns + 2, height * rows), layout="constrained")
    drawn = [figure.add_subplot(rows, columns, number + 1) for number in range(len(panels))]
    for axes, panel in zip(drawn, panels, strict=True):
        draw_panel(axes, panel, styles)
    legend = {name: handle for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
    legend |= {name: axes.plot([], [], marker, color=color)[0] for name, (color, marker) in styles.items()}
    number = -(-len(legend) // _LEGEND_ROWS)
    figure.legend(legend.values(), legend.keys(), loc="outside right upper", fontsize=8, ncols=number)
    figure.draw_without_rendering()  # places of labels depend on the layout
    for axes, panel in zip(drawn, panels, strict=True):
        draw_labels(axes, panel, styles)
    file = io.BytesIO()
    with matplotlib.rc_context(_FONTS):
        figure.savefig(file, format=form, dpi=150)
    return file.getvalue()


def draw_panel(axes: Any, panel: Panel, styles: Mapping[str, tuple[Any, str]]) -> None:
    """Draw each strategy's points and intervals in its colour and marker, and the front as circles on a grey band."""
    by_speed = sorted(panel.points, key=lambda point: point.speed)
    for name, (color, marker) in styles.items():
        points = [point for point in by_speed if point.curve == name]
        _draw_points(axes, points, color, marker + "-" if panel.has_lines else marker)
    front = [point for point in by_speed if point.on_front]
    places = [point.speed for point in front], [100 * point.score for point in front]
    axes.plot(*places, "o-", color="0.8", linewidth=7, markersize=14, zorder=1)
    axes.plot(*places, "o", color="black", markersize=10, markerfacecolor="none", zorder=3, label="Pareto front")
    axes.margins(x=0.08, y=0.1)
    axes.set_xlabel(panel.speed)
    axes.set_ylabel(panel.score)
    axes.set_title(panel.title)
    axes.grid(alpha=0.3)


def draw_labels(axes: Any, panel: Panel, styles: Mapping[str, tuple[Any, str]]) -> None:
    """Draw each label beside its point, over no other label and over few lines and intervals."""
    drawn = [(line, line.get_path()) for line in axes.lines]
    drawn += [(bars, path) for bars in axes.collections for path in bars.get_paths()]
    lines = [each.get_transform().transform_path(path).interpolated(40).vertices for each, path in drawn]
    hidden = np.concatenate([line for line in lines if len(line)])
    spots = [(point.speed, 100 * point.score) for point in panel.points]
    centers, pixels = axes.transData.transform(spots), axes.figure.dpi / 72
    taken: list[tuple[Any, Any]] = []
    for number, point in enumerate(panel.points):
        text = axes.annotate(point.label, spots[number], (0, 0), textcoords="offset points", in_layout=False, zorder=4)
        text.set(fontsize=8, fontweight="bold" if point.on_front else "normal", color=styles[point.curve][0])
        corners = text.get_window_extent().get_points()
        places: list[tuple[Any, ...]] = []
        for distance, side in _SIDES if point.label else ():
            shift = distance * pixels * np.array(side) + (np.array(side) - 1) / 2 * (corners[1] - corners[0])
            low, high = corners + shift
            wrong = sum(bool(np.all((low < other[1]) & (high > other[0]))) for other in taken)
            wrong += not (axes.bbox.contains(*low) and axes.bbox.contains(*high))
            gaps = np.linalg.norm(np.maximum(0, np.maximum(low - centers, centers - high)), axis=1)
            misplaced = np.sum(gaps < gaps[number] - 0.5)  # points to which the label seems to belong
            covered = np.sum(np.all((low < hidden) & (hidden < high), axis=1))
            places.append((wrong, misplaced, distance + 4 * covered, len(places), shift, (low, high)))
        if places:
            *_, shift, box = min(places)
            text.xyann = tuple(shift / pixels)
            taken.append(box)


def _points_of_rows(rows: Sequence[Row], speed: str) -> tuple[Point, ...]:
    """Return the points of scored rows. `speed` names the field of Measure."""
    values = [(getattr(row.measure, speed), row.measure.score.share) for row in rows if row.measure.score is not None]
    front, few = pareto_front(values), len(rows) <= _MAX_NAMES
    # The last word of a name is the value in which the points of a curve differ.
    labels = [row.config.removeprefix(row.curve).lstrip(" -").rpartition(" ")[2] if few else row.config for row in rows]
    return tuple(
        Point(
            speed=getattr(row.measure, speed),
            speed_interval=getattr(row.measure, f"{speed}_interval"),
            score=score.share,
            score_interval=Interval(score.low, score.high),
            on_front=number in front,
            label=labels[number] if few or number in front else "",
            curve=row.curve,
        )
        for number, row in enumerate(rows)
        if (score := row.measure.score) is not None
    )


def _draw_points(axes: Any, points: Sequence[Point], color: Any, form: str) -> None:
    if points:
        speeds = [_bar(point.speed, point.speed_interval) for point in points]
        scores = [_bar(100 * point.score, point.score_interval, 100) for point in points]
        axes.errorbar(
            [point.speed for point in points],
            [100 * point.score for point in points],
            list(zip(*scores, strict=True)),
            list(zip(*speeds, strict=True)),
            **{"fmt": form, "color": color, "linewidth": 1.2, "markersize": 5, "zorder": 2},
            **{"ecolor": (*color, 0.4), "elinewidth": 0.8, "capsize": 2},
        )


def _bar(value: float, interval: Interval | None, factor: float = 1.0) -> tuple[float, float]:
    """Return the lower and upper length of an error bar, 0 without an interval."""
    return (0.0, 0.0) if interval is None else (value - factor * interval.low, factor * interval.high - value)
