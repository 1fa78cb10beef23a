"""Report of the speed benchmark, and its table: medians and ratios of the seconds of single steps."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lopa.bench.report import PromptFile, Run
from lopa.bench.table import MISSING, Table, ms_text, table_from_records

ROUNDS = 3
"""Decodes of each prompt on each side."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step."""

    branches: int
    seconds: float


@dataclass(frozen=True)
class TimedDecode:
    """One prompt decoded once."""

    ids: tuple[int, ...]
    """All generated token ids."""
    steps: tuple[StepTime, ...]


@dataclass(frozen=True)
class StepComparison:
    """Seconds per step of both sides over the same steps."""

    steps: int
    """Number of steps per side, over all rounds."""
    ours_median: float
    eager_median: float
    ratio_of_medians: float
    ratio_of_totals: float
    """Seconds of the eager side divided by the seconds of lopa, over all steps."""


@dataclass(frozen=True)
class SpeedFigures:
    """Figures of the speed benchmark."""

    rounds: int
    prompts: int
    same_tokens: bool
    other_tokens: tuple[int, ...]
    """Indices of prompts with different tokens, which are excluded from the times."""
    all_steps: StepComparison | None
    """All steps, or None if no prompt was decoded equally."""
    full_steps: StepComparison | None
    """Steps with the full number of branches, or None if there are none."""


@dataclass(frozen=True)
class SpeedReport:
    """Report of `lopa-export bench speed`."""

    benchmark: str
    run: Run
    prompts: PromptFile
    settings: dict[str, Any]
    measured: SpeedFigures


def table_from_speed(report: SpeedReport) -> Table:
    """Return a table of the seconds per step on both sides."""
    measured, branches = report.measured, report.settings["branches"]
    where = f"{report.run.device}, {report.run.threads} thread(s), {report.run.machine.cpu}"
    tokens = "same tokens on both sides"
    if not measured.same_tokens:
        tokens = f"DIFFERENT TOKENS for prompts {list(measured.other_tokens)}, which are excluded"
    compared = {"all": measured.all_steps, f"with {branches} branches": measured.full_steps}
    return table_from_records(
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
    )


def measured_from_turns(
    turns: Sequence[tuple[TimedDecode, TimedDecode]], *, prompts: int, branches: int
) -> SpeedFigures:
    """Return medians and ratios of `turns` (ours, eager), which cycle through the prompts."""
    other = sorted({turn % prompts for turn, (ours, eager) in enumerate(turns) if ours.ids != eager.ids})
    same = [pair for turn, pair in enumerate(turns) if turn % prompts not in other]
    pairs = [pair for ours, eager in same for pair in zip(ours.steps, eager.steps, strict=True)]
    return SpeedFigures(
        rounds=len(turns) // prompts,
        prompts=prompts,
        same_tokens=not other,
        other_tokens=tuple(other),
        all_steps=_compared(pairs),
        full_steps=_compared([pair for pair in pairs if pair[0].branches == branches]),
    )


def _compared(pairs: Sequence[tuple[StepTime, StepTime]]) -> StepComparison | None:
    if not pairs:
        return None
    ours, eager = [pair[0].seconds for pair in pairs], [pair[1].seconds for pair in pairs]
    return StepComparison(
        steps=len(pairs),
        ours_median=statistics.median(ours),
        eager_median=statistics.median(eager),
        ratio_of_medians=statistics.median(eager) / statistics.median(ours),
        ratio_of_totals=sum(eager) / sum(ours),
    )
