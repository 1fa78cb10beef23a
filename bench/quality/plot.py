"""Score against tokens per forward, one point for each configuration, as in the paper's Figure 4."""

from lopa.bench.eval_set import SCORED_KIND
from lopa.bench.figure import png_from_figure
from lopa.bench.quality.measure import QualityReport, Row

_COLOURS = {"vanilla": "tab:gray", "threshold": "tab:green", "d2f": "tab:orange", "lopa": "tab:blue"}


def png_from_quality(report: QualityReport) -> bytes:
    """The PNG file; bars are the 95 % intervals of the scores. The report must have prompts of the scored kind."""
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.kind == SCORED_KIND]
    figure = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes = figure.add_subplot()
    looking_ahead = [row for row in rows if row.strategy in ("d2f", "lopa") and row.branches != "auto"]
    axes.plot([_across(row) for row in looking_ahead], [_up(row) for row in looking_ahead], color="0.8", zorder=1)
    for row in rows:
        score = row.default.score
        assert score is not None
        bars = [[100 * (score.share - score.low)], [100 * (score.high - score.share)]]
        axes.errorbar(_across(row), _up(row), yerr=bars, fmt="o", capsize=2, color=_COLOURS[row.strategy], zorder=2)
        above = (_across(row), 100 * score.high)
        axes.annotate(row.config, above, xytext=(0, 4), textcoords="offset points", ha="center", fontsize=9)
    axes.margins(x=0.08, y=0.1)
    axes.set_xlabel("tokens per forward, up to the end of the text")
    axes.set_ylabel(f"right answers of {rows[0].default.prompts}, %")
    axes.set_title(f"{report.run.bundle}: quality against parallelism")
    axes.grid(alpha=0.3)
    return png_from_figure(figure)


def _across(row: Row) -> float:
    return row.default.tokens_per_forward


def _up(row: Row) -> float:
    return 100 * row.default.score.share if row.default.score is not None else 0.0
