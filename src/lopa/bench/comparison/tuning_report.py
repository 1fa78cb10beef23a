"""Report of `lopa-export tune`, and its tables: the compared configurations, and the presets."""

from dataclasses import dataclass
from typing import Any

from lopa.bench.comparison.ladder import Verdict
from lopa.bench.comparison.paired_statistics import Interval, ScoreDifference
from lopa.bench.report import PromptFile, Run
from lopa.bench.table import MISSING, Table, table_from_records


@dataclass(frozen=True)
class TuningRow:
    """Figures of one configuration on the questions that it answered."""

    config: str
    bundle: str
    """Name of the bundle's folder."""
    options: dict[str, Any]
    """Options that replace the bundle's defaults."""
    questions: int
    score: float
    """Mean score, from 0 to 1."""
    score_interval: Interval
    """95 % interval of the score over similar questions."""
    difference: ScoreDifference | None
    """Difference from the control's score, or None for the control itself."""
    tokens_per_second: float
    speed: float
    """Tokens per second divided by the control's, on the same questions."""
    seconds_per_question: float
    verdict: Verdict | None
    """Result of the comparison with the control, or None for a configuration that was not compared."""
    on_front: bool
    """True if no configuration that answered all questions is faster and has at least its score."""


@dataclass(frozen=True)
class PresetRow:
    """A preset, timed once more in turns with the control."""

    preset: str
    config: str
    options: dict[str, Any]
    tokens_per_second: float
    speed: float
    """Tokens per second divided by the control's."""
    speed_interval: Interval | None
    """95 % interval of the speed over similar questions."""
    questions: int
    measured: str
    """Score and speed, as a phrase."""


@dataclass(frozen=True)
class TuningReport:
    """Report of one run."""

    benchmark: str
    run: Run
    prompts: PromptFile
    scoring: str
    """Meaning of a score: correct answers, or agreement with slow decoding."""
    control: dict[str, Any]
    """Options of the bundle's defaults, the control."""
    max_loss: float
    """Allowed loss of the preset `fast`, as a share of the score."""
    is_complete: bool
    """False if the time limit ended the search."""
    decodes: int
    seconds: float
    rows: tuple[TuningRow, ...]
    presets: tuple[PresetRow, ...]


def tables_from_tuning(report: TuningReport) -> list[Table]:
    """Return a table of the compared configurations, the fastest first, and one of the presets, each if it has rows.

    It has every other precision, also a slower one.
    """
    own = [row.bundle for row in report.rows if row.difference is None]
    compared = [
        row
        for row in report.rows
        if row.verdict is not None or row.difference is None or row.on_front or row.bundle not in own
    ]
    bundles = {row.bundle for row in compared}
    columns = {
        "configuration": lambda row: f"{row.config} *" if row.on_front else row.config,
        "score % (95 %)": _score,
        "questions": lambda row: str(row.questions),
        "lost, won": lambda row: MISSING if row.difference is None else f"-{row.difference.lost} +{row.difference.won}",
        "points, at least (90 %)": _points,
        "tokens/s": lambda row: f"{row.tokens_per_second:.0f}",
        "times the defaults": lambda row: f"{row.speed:.2f}",
        "s a question": lambda row: f"{row.seconds_per_question:.2f}",
        "result": lambda row: row.verdict or (MISSING if row.bundle in own else "slower"),
    }
    if len(bundles) > 1:
        columns["bundle"] = lambda row: row.bundle
    machine = report.run.machine.cpu
    left_out = len(report.rows) - len(compared)
    tables = [
        table_from_records(
            f"Configurations of {report.run.bundle} compared with its defaults, {report.run.device}, {machine}; "
            f"score: {report.scoring}; {left_out} others were slower; * marks the Pareto front",
            compared,
            columns,
        ),
        table_from_records(
            f"Presets, timed again in turns with the defaults ({report.decodes} decodes in all)",
            report.presets,
            {
                "preset": lambda row: row.preset,
                "options": lambda row: " ".join(f"{name}={value}" for name, value in row.options.items()),
                "tokens/s": lambda row: f"{row.tokens_per_second:.0f}",
                "times the defaults (95 %)": _speed,
            },
        ),
    ]
    return [table for table in tables if table.rows]


def _score(row: TuningRow) -> str:
    return f"{100 * row.score:.1f} ({100 * row.score_interval.low:.0f}-{100 * row.score_interval.high:.0f})"


def _points(row: TuningRow) -> str:
    if row.difference is None:
        return MISSING
    return f"{100 * row.difference.mean:+.1f}, {100 * row.difference.low:+.1f}"


def _speed(row: PresetRow) -> str:
    interval = row.speed_interval
    return f"{row.speed:.2f}" + ("" if interval is None else f" ({interval.low:.2f}-{interval.high:.2f})")
