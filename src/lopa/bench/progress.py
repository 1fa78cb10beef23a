"""Progress of a benchmark on standard error.

A terminal shows a bar. Otherwise log lines are printed at intervals. Both show rate and remaining time, and end with a
summary line.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lopa.bench.pace import Pace, count_text


class BenchProgress(Protocol):
    """Callback that receives the progress of a benchmark."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Report that `done` units are finished; `total`, if given, replaces the expected number."""


def silent(_done: int, _total: int | None = None) -> None:
    """Ignore the progress."""


@contextmanager
def show_progress(what: str, total: int, *, quiet: bool = False) -> Iterator[BenchProgress]:
    """Return a context that shows the progress of `total` units, which `what` names. `quiet` hides the progress."""
    task = _Task(what, total)
    try:
        if quiet:
            yield task.note
        elif sys.stderr.isatty():
            with _bar(task) as update:
                yield update
        else:
            yield task.line
    finally:
        if not quiet:
            print(task.last_line(), file=sys.stderr)


class _Task:
    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.pace = Pace()

    def note(self, done: int, total: int | None = None) -> None:
        self.done, self.total = done, self.total if total is None else total

    def line(self, done: int, total: int | None = None) -> None:
        self.note(done, total)
        if self.done < self.total and self.pace.line_due(self.done, self.total):
            print(f"{self.what}: {self.pace.so_far(self.done, self.total)}", file=sys.stderr, flush=True)

    def last_line(self) -> str:
        if self.done < self.total:
            return f"{self.what}: stopped after {count_text(self.done)} of {count_text(self.total)}"
        return f"{self.what}: {self.pace.at_the_end(self.done)}"


@contextmanager
def _bar(task: _Task) -> Iterator[BenchProgress]:
    import rich.console
    import rich.progress

    columns = (
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeElapsedColumn(),
        rich.progress.TextColumn("left"),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True) as bar:
        row = bar.add_task(task.what, total=task.total, rate="")

        def update(done: int, total: int | None = None) -> None:
            task.note(done, total)
            bar.update(row, completed=done, total=task.total, rate=task.pace.rate(done))

        yield update
