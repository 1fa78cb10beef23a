"""Stage 1: what a forward said of a branch, before candidates are made of it, and what the strategy remembers of it.

Runs on every branch, since branches compete by what comes out. Pure.
"""

from collections.abc import Callable
from dataclasses import replace

from lopa.runtime.contract import Int64
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.history.credit import Credit, credit_after, credited
from lopa.runtime.history.divergences import Divergences, divergences_after
from lopa.runtime.history.schedule import ScheduleStep, next_step
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.memory import Memory
from lopa.runtime.sequence.row_statistics import RowStatistics, put_rows
from lopa.runtime.sequence.windows import Windows

Rescore = Callable[
    [RowStatistics, Int64, Memory | None, GenerationConfig],
    tuple[RowStatistics, Memory | None],
]
"""Of rows [n] about the positions [n] of a branch, ascending, and its memory: the rows to decide by, and its memory."""


def as_said(
    rows: RowStatistics,
    positions: Int64,  # noqa: ARG001
    memory: Memory | None,
    config: GenerationConfig,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Nothing is changed."""
    return rows, memory


def with_divergences(
    rows: RowStatistics,
    positions: Int64,
    memory: Memory | None,
    config: GenerationConfig,  # noqa: ARG001
) -> tuple[RowStatistics, Memory | None]:
    """Nothing is changed; how far it moved is remembered."""
    assert memory is None or isinstance(memory, Divergences)
    return rows, divergences_after(memory, rows, positions)


def with_credit(
    rows: RowStatistics,
    positions: Int64,
    memory: Memory | None,
    config: GenerationConfig,
) -> tuple[RowStatistics, Memory | None]:
    """Tokens that were the best before are more probable."""
    assert memory is None or isinstance(memory, Credit)
    credit = credit_after(memory, rows, positions)
    return credited(rows, credit, config.logits_temperature), credit


def on_schedule(
    rows: RowStatistics, positions: Int64, memory: Memory | None, config: GenerationConfig
) -> tuple[RowStatistics, Memory | None]:
    """Nothing is changed; which step of the schedule this is is remembered."""
    assert memory is None or isinstance(memory, ScheduleStep)
    return rows, next_step(memory, positions, config)


def rescored(
    branches: tuple[Branch, ...], windows: Windows, rows: RowStatistics, rescore: Rescore, config: GenerationConfig
) -> tuple[tuple[Branch, ...], RowStatistics]:
    """The `branches` of a round with what they remember behind it, and the statistics `rows` [B, Q] to decide by."""
    if rescore is as_said:
        return branches, rows
    result, after = rows.copy(), []
    for row, (branch, asked) in enumerate(zip(branches, windows.asked, strict=True)):
        own = (row, slice(windows.kept, windows.kept + len(asked)))
        branch, said = rescored_branch(branch, asked, rows[own], rescore, config)
        put_rows(result, own, said)
        after.append(branch)
    return tuple(after), result


def rescored_branch(
    branch: Branch, asked: Int64, rows: RowStatistics, rescore: Rescore, config: GenerationConfig
) -> tuple[Branch, RowStatistics]:
    """One `branch`, and `rows` [n] of the positions `asked` [n]."""
    said, memory = rescore(rows, asked, branch.memory, config)
    return replace(branch, memory=memory), said
