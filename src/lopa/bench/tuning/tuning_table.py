"""Tables of a tuning report: the compared configurations, and the presets."""

from lopa.bench.table import MISSING, Table, table_from_records
from lopa.bench.tuning.tuning_report import PresetRow, TuningReport, TuningRow


def tables_from_tuning(report: TuningReport) -> list[Table]:
    """Return a table of the configurations that were compared, the fastest first, and one of the presets."""
    compared = [row for row in report.rows if row.verdict is not None or row.difference is None or row.on_front]
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
        "result": lambda row: row.verdict or MISSING,
    }
    if len(bundles) > 1:
        columns["bundle"] = lambda row: row.bundle
    machine = report.run.machine.cpu
    left_out = len(report.rows) - len(compared)
    return [
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
                "options": lambda row: options_text(row),
                "tokens/s": lambda row: f"{row.tokens_per_second:.0f}",
                "times the defaults (95 %)": _speed,
            },
        ),
    ]


def options_text(row: PresetRow) -> str:
    """Return the options of a preset, as on a command line."""
    return " ".join(f"{name}={value}" for name, value in row.options.items())


def _score(row: TuningRow) -> str:
    return f"{100 * row.score:.1f} ({100 * row.score_interval.low:.0f}-{100 * row.score_interval.high:.0f})"


def _points(row: TuningRow) -> str:
    if row.difference is None:
        return MISSING
    return f"{100 * row.difference.mean:+.1f}, {100 * row.difference.low:+.1f}"


def _speed(row: PresetRow) -> str:
    interval = row.speed_interval
    return f"{row.speed:.2f}" + ("" if interval is None else f" ({interval.low:.2f}-{interval.high:.2f})")
