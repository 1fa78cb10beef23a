"""Shows how far an export is: a bar on a terminal, a line per tenth of the bytes elsewhere. On standard error."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class ExportProgress:
    """A lopa.export.progress.Progress, to be called inside its `with` block."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=self._console) if self._console.is_terminal else None
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

    def __enter__(self) -> Self:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
