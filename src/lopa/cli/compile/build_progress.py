"""Shows how far a compiler of engines is, on standard error: what TensorRT counts, and a clock for ATC, which counts
nothing.
"""

import threading
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.status import Status

from lopa.cli.program.verbosity import quiet
from lopa.cli.shown.bars import ShownBars

_EVERY = 30.0
"""Seconds between lines about ATC."""


class TensorRTProgress(ShownBars):
    """A lopa.export.progress.Progress, to be called inside its `with` block, from any thread.

    A bar for each phase on a terminal, a line for each elsewhere: phases lie in each other, stages would not do.
    """

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


class AtcProgress:
    """A lopa.export.ascend.build.Elapsed, to be called inside its `with` block.

    A clock on a terminal, a line for every half minute elsewhere.
    """

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, quiet=quiet())
        self._status: Status | None = None
        self._next_line = 0.0

    def __call__(self, stage: str, seconds: float) -> None:
        """`seconds` since the start of `stage`; 0 at its start."""
        if seconds == 0:
            self._next_line = _EVERY
            self._console.print(f"atc compiles {stage}; this takes minutes for each bucket", soft_wrap=True)
        if self._console.is_terminal and not quiet():
            self._show(f"atc {stage}: {seconds:.0f} s")
        elif seconds >= self._next_line:
            self._next_line += _EVERY
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
