"""Shows how far TensorRT is: a bar for each phase on a terminal, a line for each elsewhere. On standard error."""

import threading

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn

from lopa.cli.shown.bars import ShownBars


class BuildProgress(ShownBars):
    """A lopa.export.progress.Progress, to be called inside its `with` block, from any thread."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """`done` of `total` steps of the phase `stage`."""
        with self._lock:
            if stage not in self._tasks:
                self._tasks[stage] = TaskID(0) if self._bars is None else self._bars.add_task(stage, total=total)
                if self._bars is None:
                    self._console.print(f"TensorRT: {stage}", soft_wrap=True)
            if self._bars is not None:
                self._bars.update(self._tasks[stage], completed=done, total=total)
