"""The tables of a speed report."""

from lopa.bench.speed.report import LONG_CALL, Compared, Outside, SpeedReport
from lopa.bench.table import Table


def tables_from_speed(report: SpeedReport) -> list[Table]:
    """Seconds per step on both sides, and our share outside the engine."""
    measured, branches = report.measured, report.settings["branches"]
    where = f"{report.run.device}, {report.run.threads} thread(s), {report.run.machine.cpu}"
    tokens = "same tokens on both sides"
    if not measured.same_tokens:
        tokens = f"OTHER TOKENS for prompts {list(measured.other_tokens)}, which are left out"
    adapter = ", the adapter apart" if report.adapter_apart else ""
    return [
        Table(
            title=f"Milliseconds per step: lopa-export beside PyTorch eager{adapter}, branch after branch; "
            f"{branches} branches, {measured.prompts} prompts x {measured.rounds} rounds, {where}; {tokens}",
            columns=("steps", "number", "ours, median", "eager, median", "ratio of medians", "ratio of totals"),
            rows=(
                _compared_row("all", measured.all_steps),
                _compared_row(f"with {branches} branches", measured.full_steps),
            ),
        ),
        Table(
            title="Our share of a step outside the engine",
            columns=("steps", "number", "engine call, median ms", "outside the call", "outside session.forward"),
            rows=(
                _outside_row("all", measured.outside),
                _outside_row(f"call of {LONG_CALL * 1e3:.0f} ms or more", measured.outside_long_calls),
            ),
        ),
    ]


def _compared_row(name: str, found: Compared | None) -> tuple[str, ...]:
    if found is None:
        return (name, "0", "-", "-", "-", "-")
    return (
        name,
        str(found.steps),
        f"{found.ours_median * 1e3:.2f}",
        f"{found.eager_median * 1e3:.2f}",
        f"{found.ratio_of_medians:.2f}",
        f"{found.ratio_of_totals:.2f}",
    )


def _outside_row(name: str, found: Outside | None) -> tuple[str, ...]:
    if found is None:
        return (name, "0", "-", "-", "-")
    return (
        name,
        str(found.steps),
        f"{found.call_median * 1e3:.2f}",
        f"{found.outside_call:.1%}",
        f"{found.outside_forward:.1%}",
    )
