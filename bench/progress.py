"""How far a benchmark is, on standard error: a bar on a terminal, a plain line now and then elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LINES = 10
"""Plain lines for a whole benchmark."""


@contextmanager
def progress_shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that takes the number of `what` done so far, `total` of them in all."""
    if not sys.stderr.isatty():
        yield lambda done: _line(what, done, total)
        return
    import rich.console
    import rich.progress

    columns = (*rich.progress.Progress.get_default_columns(), rich.progress.MofNCompleteColumn())
    with rich.progress.Progress(*columns, console=rich.console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _line(what: str, done: int, total: int) -> None:
    if done * _LINES // total > (done - 1) * _LINES // total:
        print(f"{done} of {total} {what}", file=sys.stderr)
