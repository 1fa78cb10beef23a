"""Progress of consecutive stages of work on standard error, with rate, time left and duration.

On a terminal each stage has a bar or a running clock. Otherwise it prints lines.
"""

from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lopa.bench.pace import Pace, count_text, duration_text
from lopa.cli.terminal.progress_bars import ProgressBars

_LONG_SECONDS = 1.0
"""Minimum seconds of a stage without amounts for its duration to be printed."""


class StageProgress(ProgressBars):
    """Progress of stages, usable as a lopa.export.progress.ProgressCallback. Call it inside its `with` block.

    A stage ends when another begins and at the end of the block. `amount` formats an amount, e.g. bytes.
    """

    def __init__(self, amount: Callable[[float], str] = count_text) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._amount = amount
        self._stage: str | None = None
        self._done = 0
        self._task = TaskID(0)
        self._pace = Pace()
        self._whole = Pace()

    @property
    def seconds(self) -> float:
        """Seconds since this object was created."""
        return self._whole.seconds

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` of `stage` is done. Both are 0 for a stage without amounts."""
        if stage != self._stage:
            self._end_stage()
            self._begin_stage(stage, total)
        self._done = done
        if self._bars is not None:
            self._bars.update(self._task, completed=done, total=total or None, amount=self._shown(done, total))
        elif 0 < done < total and self._pace.line_due(done, total):
            self._line(f"{stage}: {self._pace.so_far(done, total)}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._end_stage()
        super().__exit__(kind, error, trace)

    def _begin_stage(self, stage: str, total: int) -> None:
        self._stage, self._pace = stage, Pace(self._amount)
        if self._bars is not None:
            self._task = self._bars.add_task(stage, total=total or None, amount="")
        else:
            self._line(f"{stage} ({self._amount(total)})" if total else stage)

    def _end_stage(self) -> None:
        if self._stage is None:
            return
        if self._bars is not None:
            self._bars.update(self._task, total=self._done or 1, completed=self._done or 1)
        elif self._done:
            self._line(f"{self._stage}: {self._pace.at_the_end(self._done)}")
        elif self._pace.seconds >= _LONG_SECONDS:
            self._line(f"{self._stage}: {duration_text(self._pace.seconds)}")

    def _shown(self, done: int, total: int) -> str:
        rate = self._pace.rate(done)
        amount = f"{self._amount(done)} of {self._amount(total)}" if total else ""
        return f"{amount}, {rate}" if amount and rate else amount

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True, markup=False)
