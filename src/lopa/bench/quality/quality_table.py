"""Tables of a quality report, one for each kind of prompt."""

from collections.abc import Callable
from itertools import groupby

from lopa.bench.quality.intervals import Interval
from lopa.bench.quality.paired_comparison import CONTROL
from lopa.bench.quality.quality_figures import Row
from lopa.bench.quality.quality_report import QualityReport
from lopa.bench.table import MISSING, Table, table_from_records


def tables_from_quality(report: QualityReport) -> list[Table]:
    """Return a table for each kind of prompt, math first, then one with each kind's curves.

    Columns without any value are omitted.
    """
    tables = []
    for kind, group in groupby(report.rows, key=lambda row: row.kind):
        rows = list(group)
        empty = {name for name in _OPTIONAL if all(_COLUMNS[name](row) == MISSING for row in rows)}
        tables.append(
            table_from_records(
                f"{rows[0].default.prompts} {kind} prompts of {report.prompts.name}, "
                f"{report.run.device}, {report.run.machine.cpu}",
                rows,
                {name: cell for name, cell in _COLUMNS.items() if name not in empty},
            )
        )
    for kind, curves in groupby(report.curves, key=lambda curve: curve.kind):
        tables.append(
            table_from_records(
                f"Accuracy under parallelism (AUP, area under score against tokens per forward), {kind} prompts",
                curves,
                {
                    "strategy": lambda curve: curve.name,
                    "AUP (95 %)": lambda curve: _with_interval(curve.aup, curve.aup_interval, 0),
                    "configurations, by tokens per forward": lambda curve: ", ".join(curve.configs),
                },
            )
        )
    return tables


def _score(row: Row) -> str:
    score = row.default.score
    share = MISSING if score is None else f"{score.share:.1%} ({score.low:.0%}-{score.high:.0%})"
    return share.replace("%", "")


def _compared(row: Row) -> str:
    """Return a text such as "d2f 0.9: +12 -5, 0.14"."""
    beside = row.beside
    if beside is None:
        return MISSING
    p = f"{beside.p:.2f}" if beside.p >= 0.005 else "<0.01"
    return f"{beside.control}: +{beside.gained} -{beside.lost}, {p}"


def _saved(row: Row) -> str:
    if row.published is None or row.steps_saved is None:
        return MISSING
    return f"{row.steps_saved} ({row.steps_saved / row.published.steps:.0%})"


def _with_interval(value: float, interval: Interval | None, digits: int) -> str:
    """Return a text such as "4.31 (4.12-4.50)"."""
    suffix = "" if interval is None else f" ({interval.low:.{digits}f}-{interval.high:.{digits}f})"
    return f"{value:.{digits}f}{suffix}"


_VERSUS = f"vs {CONTROL} of similar speed: gained, lost, p"
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "config": lambda row: row.config,
    "score % (95 %)": _score,
    "bound %": lambda row: MISSING if row.default.limit is None else f"{100 * row.default.limit:.1f}",
    _VERSUS: _compared,
    "tokens/forward (95 %)": lambda row: _with_interval(
        row.default.tokens_per_forward, row.default.tokens_per_forward_interval, 2
    ),
    "window tokens/forward": lambda row: f"{row.default.window_tokens_per_forward:.2f}",
    "steps": lambda row: str(row.default.steps),
    "reference steps": lambda row: MISSING if row.published is None else str(row.published.steps),
    "steps saved": _saved,
    "tokens/s (95 %)": lambda row: _with_interval(
        row.default.tokens_per_second, row.default.tokens_per_second_interval, 0
    ),
    "median tokens/s": lambda row: f"{row.default.tokens_per_second_median:.0f}",
    "seconds": lambda row: f"{row.default.seconds:.1f}",
}
_OPTIONAL = ("score % (95 %)", "bound %", _VERSUS)
