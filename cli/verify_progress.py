"""Shows how far a verification is: a bar on a terminal, a line per stage elsewhere. On standard error."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn


class VerifyProgress:
    """A lopa.export.verify.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cases"))
        self._bars = Progress(*columns, console=self._console) if self._console.is_terminal else None
        self._task: TaskID | None = None
        self._last_stage = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` cases of `stage`; 0 of 0 for a stage without cases."""
        if self._bars is not None and total:
            if self._task is None:
                self._task = self._bars.add_task(stage, total=total)
            self._bars.update(self._task, completed=done)
        elif stage != self._last_stage:
            self._last_stage = stage
            self._console.print(stage, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
