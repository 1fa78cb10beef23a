"""How far a benchmark is, on standard error: a bar on a terminal, a plain line now and then elsewhere, and a last line.

All with rate and time left.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from lopa.bench.pace import Pace, count_text


class Progress(Protocol):
    """Hears how far a benchmark is."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """`done` in all so far; `total` when another number is expected now."""


def silent(_done: int, _total: int | None = None) -> None:
    """Tells nobody."""


@contextmanager
def progress_shown(what: str, total: int, *, quiet: bool = False) -> Iterator[Progress]:
    """Takes the number of `what` done so far, `total` of them in all. With `quiet` nothing is shown."""
    work = _Work(what, total)
    try:
        if quiet:
            yield work.note
        elif sys.stderr.isatty():
            with _bar(work) as noted:
                yield noted
        else:
            yield work.line
    finally:
        if not quiet:
            print(work.last_line(), file=sys.stderr)


class _Work:
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
def _bar(work: _Work) -> Iterator[Progress]:
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
        task = bar.add_task(work.what, total=work.total, rate="")

        def noted(done: int, total: int | None = None) -> None:
            work.note(done, total)
            bar.update(task, completed=done, total=work.total, rate=work.pace.rate(done))

        yield noted
