"""The tables of a quality report, one for each kind of prompt."""

from itertools import groupby

from lopa.bench.quality.comparison import CONTROL, Comparison
from lopa.bench.quality.curves import Curve
from lopa.bench.quality.intervals import Interval
from lopa.bench.quality.measure import Row
from lopa.bench.quality.report import QualityReport
from lopa.bench.table import Table

_BESIDE = f"beside {CONTROL} of like speed: gained, lost, p"

_COLUMNS = (
    "config",
    "score % (95 %)",
    "limit %",
    _BESIDE,
    "tokens/forward (95 %)",
    "window tokens/forward",
    "steps",
    "published steps",
    "steps saved",
    "tokens/s (95 %)",
    "median tokens/s",
    "seconds",
)
_NOTHING = "-"


def tables_from_quality(report: QualityReport) -> list[Table]:
    """The first kind is math, if it is there; a column that no row of a kind has a value for is left out."""
    tables = []
    for kind, group in groupby(report.rows, key=lambda row: row.kind):
        rows = list(group)
        measures = [row.default for row in rows]
        shown = {
            "score % (95 %)": any(each.score for each in measures),
            "limit %": any(each.limit is not None for each in measures),
            _BESIDE: any(row.beside for row in rows),
        }
        dropped = {i for i, name in enumerate(_COLUMNS) if not shown.get(name, True)}
        tables.append(
            Table(
                title=f"{rows[0].default.prompts} {kind} prompts of {report.prompts.name}, "
                f"{report.run.device}, {report.run.machine.cpu}",
                columns=tuple(name for i, name in enumerate(_COLUMNS) if i not in dropped),
                rows=tuple(tuple(cell for i, cell in enumerate(_cells(row)) if i not in dropped) for row in rows),
            )
        )
    for kind, curves in groupby(report.curves, key=lambda curve: curve.kind):
        tables.append(
            Table(
                title=f"Accuracy under parallelism: area under score against tokens per forward, {kind} prompts",
                columns=("strategy", "AUP (95 %)", "configurations, by tokens per forward"),
                rows=tuple(map(_curve_cells, curves)),
            )
        )
    return tables


def _curve_cells(curve: Curve) -> tuple[str, ...]:
    return curve.name, _with_interval(curve.aup, curve.aup_interval, 0), ", ".join(curve.configs)


def _compared(beside: Comparison) -> str:
    """d2f 0.9: +12 -5, 0.14."""
    p = f"{beside.p:.2f}" if beside.p >= 0.005 else "<0.01"
    return f"{beside.control}: +{beside.gained} -{beside.lost}, {p}"


def _with_interval(value: float, interval: Interval | None, digits: int) -> str:
    """4.31 (4.12-4.50)."""
    likely = "" if interval is None else f" ({interval.low:.{digits}f}-{interval.high:.{digits}f})"
    return f"{value:.{digits}f}{likely}"


def _cells(row: Row) -> tuple[str, ...]:
    measure, score = row.default, row.default.score
    share = _NOTHING if score is None else f"{score.share:.1%} ({score.low:.0%}-{score.high:.0%})".replace("%", "")
    saved = _NOTHING
    if row.published is not None and row.steps_saved is not None:
        saved = f"{row.steps_saved} ({row.steps_saved / row.published.steps:.0%})"
    beside = row.beside
    return (
        row.config,
        share,
        _NOTHING if measure.limit is None else f"{measure.limit:.1%}".replace("%", ""),
        _NOTHING if beside is None else _compared(beside),
        _with_interval(measure.tokens_per_forward, measure.tokens_per_forward_interval, 2),
        f"{measure.window_tokens_per_forward:.2f}",
        str(measure.steps),
        _NOTHING if row.published is None else str(row.published.steps),
        saved,
        _with_interval(measure.tokens_per_second, measure.tokens_per_second_interval, 0),
        f"{measure.tokens_per_second_median:.0f}",
        f"{measure.seconds:.1f}",
    )
