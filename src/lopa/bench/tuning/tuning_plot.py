"""Plot of a tuning report: score against speed with intervals, and the Pareto front."""

from lopa.bench.figure import png_from_figure
from lopa.bench.tuning.tuning_report import TuningReport, TuningRow

_FRONT, _GREY = "C0", "0.6"


def png_from_tuning(report: TuningReport) -> bytes:
    """Draw a PNG file. Bars are 95 % intervals of the scores. The Pareto front is bold, and presets are labelled."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.add_subplot()
    rows = [row for row in report.rows if row.verdict is not None or row.difference is None]
    front = sorted((row for row in report.rows if row.on_front), key=lambda row: row.speed)
    for part, color, format, width in ((rows, _GREY, "o", 0.6), (front, _FRONT, "o-", 2.0)):
        if part:
            axes.errorbar(
                [row.speed for row in part],
                [100 * row.score for row in part],
                _bars(part),
                fmt=format,
                color=color,
                linewidth=width,
                elinewidth=0.6,
                capsize=2,
            )
    names = {row.config: row.preset for row in report.presets}
    for row in rows:
        if row.config in names or row.difference is None:
            label = f"{names[row.config]}: {row.config}" if row.config in names else row.config
            axes.annotate(label, (row.speed, 100 * row.score), xytext=(4, 5), textcoords="offset points", fontsize=8)
    axes.set_xlabel("tokens per second, in multiples of the defaults")
    axes.set_ylabel(f"{report.scoring}, %")
    axes.set_title(f"{report.run.bundle} on {report.run.device}")
    axes.grid(alpha=0.3)
    axes.margins(x=0.1, y=0.1)
    return png_from_figure(figure)


def _bars(rows: list[TuningRow]) -> tuple[list[float], list[float]]:
    low = [100 * (row.score - row.score_interval.low) for row in rows]
    return low, [100 * (row.score_interval.high - row.score) for row in rows]
