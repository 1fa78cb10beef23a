"""Tables of a speed report."""

from lopa.bench.speed.speed_report import LONG_CALL, SpeedReport
from lopa.bench.table import MISSING, Table, ms_text, table_from_records


def tables_from_speed(report: SpeedReport) -> list[Table]:
    """Return tables of the seconds per step on both sides, and of lopa's share outside the engine."""
    measured, branches = report.measured, report.settings["branches"]
    where = f"{report.run.device}, {report.run.threads} thread(s), {report.run.machine.cpu}"
    tokens = "same tokens on both sides"
    if not measured.same_tokens:
        tokens = f"DIFFERENT TOKENS for prompts {list(measured.other_tokens)}, which are excluded"
    compared = {"all": measured.all_steps, f"with {branches} branches": measured.full_steps}
    outside = {"all": measured.outside, f"calls of {LONG_CALL * 1e3:.0f} ms or more": measured.outside_long_calls}
    return [
        table_from_records(
            f"Milliseconds per step: lopa-export and PyTorch eager, branch by branch; "
            f"{branches} branches, {measured.prompts} prompts x {measured.rounds} rounds, {where}; {tokens}",
            compared.items(),
            {
                "steps": lambda row: row[0],
                "count": lambda row: str(row[1].steps if row[1] else 0),
                "ours, median": lambda row: ms_text(row[1].ours_median if row[1] else None),
                "eager, median": lambda row: ms_text(row[1].eager_median if row[1] else None),
                "ratio of medians": lambda row: f"{row[1].ratio_of_medians:.2f}" if row[1] else MISSING,
                "ratio of totals": lambda row: f"{row[1].ratio_of_totals:.2f}" if row[1] else MISSING,
            },
        ),
        table_from_records(
            "Share of our steps outside the engine",
            outside.items(),
            {
                "steps": lambda row: row[0],
                "count": lambda row: str(row[1].steps if row[1] else 0),
                "engine call, median ms": lambda row: ms_text(row[1].call_median if row[1] else None),
                "outside the call": lambda row: f"{row[1].outside_call:.1%}" if row[1] else MISSING,
                "outside session.forward": lambda row: f"{row[1].outside_forward:.1%}" if row[1] else MISSING,
            },
        ),
    ]
