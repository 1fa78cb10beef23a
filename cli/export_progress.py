"""Shows how far an export is: a bar on a terminal, a line per tenth of the bytes elsewhere. On standard error."""

from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TimeRemainingColumn

from lopa.cli.shown_bars import ShownBars


class ExportProgress(ShownBars):
    """A lopa.export.progress.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._tasks: dict[str, TaskID] = {}
        self._last_line = ""

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` bytes of `stage`; 0 of 0 for a stage without bytes."""
        if self._bars is not None and total:
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=total)
            self._bars.update(self._tasks[stage], completed=done)
            return
        tenths = f" {10 * done // total * 10} %" if total else ""
        if self._last_line != stage + tenths:
            self._last_line = stage + tenths
            self._console.print(self._last_line, soft_wrap=True)
