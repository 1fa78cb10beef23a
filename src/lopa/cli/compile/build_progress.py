"""Progress of engine compilers on standard error: TensorRT's own counts, and a clock for ATC, which reports none."""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status

from lopa.cli.program.verbosity import quiet
from lopa.cli.terminal.progress_bars import ProgressBars

_LINE_SECONDS = 30.0
"""Seconds between lines about ATC."""


class TensorRTProgress(ProgressBars):
    """Progress of a TensorRT build, usable as a lopa.export.progress.ProgressCallback.

    Call it inside its `with` block, from any thread. Each phase has a bar on a terminal and otherwise a line. Phases
    are nested, unlike StageProgress's stages.
    """

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._tasks: dict[str, TaskID] = {}
        self._lock = threading.Lock()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` steps of the phase `stage` are done."""
        with self._lock:
            if stage not in self._tasks:
                self._tasks[stage] = TaskID(0) if self._bars is None else self._bars.add_task(stage, total=total)
                if self._bars is None:
                    self._console.print(f"TensorRT: {stage}", soft_wrap=True)
            if self._bars is not None:
                self._bars.update(self._tasks[stage], completed=done, total=total)


class AtcProgress:
    """Display of the time that ATC has run, usable as a lopa.export.ascend.build.Elapsed.

    Call it inside its `with` block. It shows a clock on a terminal and otherwise prints a line every half minute.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet())
        self._status: Status | None = None
        self._next_line = 0.0

    def __call__(self, stage: str, seconds: float) -> None:
        """Report `seconds` since the start of `stage`; 0 at its start."""
        if seconds == 0:
            self._next_line = _LINE_SECONDS
            self._console.print(f"atc compiles {stage}; this takes minutes for each bucket", soft_wrap=True)
        if self._console.is_terminal and not quiet():
            self._show(f"atc {stage}: {seconds:.0f} s")
        elif seconds >= self._next_line:
            self._next_line += _LINE_SECONDS
            self._console.print(f"atc {stage}: {seconds:.0f} s", soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def _show(self, text: str) -> None:
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)
