"""Shows how far a verification is: a bar on a terminal, a line per stage elsewhere. On standard error."""

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn

from lopa.cli.shown_bars import ShownBars


class VerifyProgress(ShownBars):
    """A lopa.export.verify.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("cases"))
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
