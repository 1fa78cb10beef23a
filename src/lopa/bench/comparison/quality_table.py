"""Report of `lopa-export bench quality`, and its tables, one for each kind of prompt."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from lopa.bench.comparison.paired_statistics import Interval
from lopa.bench.comparison.quality_figures import BASELINE, Row, curves_from_rows
from lopa.bench.report import PromptFile, Run
from lopa.bench.table import MISSING, Table, table_from_records


@dataclass(frozen=True)
class QualityReport:
    """Report of one run."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    """Options that all configurations share."""
    rows: tuple[Row, ...]


def tables_from_quality(report: QualityReport) -> list[Table]:
    """Return a table for each kind of prompt, math first, then one with the curves of each scored kind."""
    tables = []
    for kind, group in groupby(report.rows, key=lambda row: row.kind):
        rows = list(group)
        tables.append(
            table_from_records(
                f"{rows[0].measure.prompts} {kind} prompts of {report.prompts.name}, "
                f"{report.run.device}, {report.run.machine.cpu}",
                rows,
                _COLUMNS,
            )
        )
    for kind, curves in groupby(curves_from_rows(report.rows), key=lambda curve: curve.kind):
        tables.append(
            table_from_records(
                f"Accuracy under parallelism (AUP, area under score against tokens per forward), {kind} prompts",
                list(curves),
                {
                    "strategy": lambda curve: curve.name,
                    "AUP": lambda curve: f"{curve.aup:.0f}",
                    "configurations, by tokens per forward": lambda curve: ", ".join(curve.configs),
                },
            )
        )
    return tables


def _score(row: Row) -> str:
    score = row.measure.score
    share = MISSING if score is None else f"{score.share:.1%} ({score.low:.0%}-{score.high:.0%})"
    return share.replace("%", "")


def _compared(row: Row) -> str:
    """Return a text such as "d2f 0.9: +12 -5, 0.14"."""
    beside = row.beside
    if beside is None:
        return MISSING
    found = beside.difference
    p = f"{found.p:.2f}" if found.p >= 0.005 else "<0.01"
    return f"{beside.control}: +{found.won} -{found.lost}, {p}"


def _with_interval(value: float, interval: Interval | None, digits: int) -> str:
    """Return a text such as "4.31 (4.12-4.50)"."""
    suffix = "" if interval is None else f" ({interval.low:.{digits}f}-{interval.high:.{digits}f})"
    return f"{value:.{digits}f}{suffix}"


_VERSUS = f"vs {BASELINE} of similar speed: gained, lost, p"
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "config": lambda row: row.config,
    "score % (95 %)": _score,
    _VERSUS: _compared,
    "tokens/forward (95 %)": lambda row: _with_interval(
        row.measure.tokens_per_forward, row.measure.tokens_per_forward_interval, 2
    ),
    "positions/forward": lambda row: f"{row.measure.positions_per_forward:.2f}",
    "steps": lambda row: str(row.measure.steps),
    "tokens/s (95 %)": lambda row: _with_interval(
        row.measure.tokens_per_second, row.measure.tokens_per_second_interval, 0
    ),
    "median tokens/s": lambda row: f"{row.measure.tokens_per_second_median:.0f}",
    "seconds": lambda row: f"{row.measure.seconds:.1f}",
}
