"""Progress of stages of work on standard error: bars on a terminal, otherwise lines at intervals.

Both show the rate and the remaining time.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Protocol, Self

_MINUTE, _HOUR = 60, 3600
_MEGA, _GIGA = 1e6, 1e9
_MIN_INTERVAL, _MAX_INTERVAL = 5.0, 60.0
"""Minimum and maximum seconds between lines. After the minimum, a line needs another tenth of the work."""
_LONG_SECONDS = 1.0
"""Minimum seconds of a stage without a count for its duration to be printed."""


class BenchProgress(Protocol):
    """Callback that receives the progress of a benchmark."""

    def __call__(self, done: int, total: int | None = None, /) -> None:
        """Report that `done` units are finished; `total`, if given, replaces the expected number."""


def silent(_done: int, _total: int | None = None) -> None:
    """Ignore the progress."""


def duration_text(seconds: float) -> str:
    """Format seconds: "0.4 s", "12 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 10:
        return f"{seconds:.1f} s"
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def count_text(count: float) -> str:
    """Format a count with three significant digits below one hundred."""
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:.3g}"


def bytes_text(count: float) -> str:
    """Format a byte count: "9.7 MB", "15.23 GB"."""
    return f"{count / _GIGA:.2f} GB" if count >= _GIGA else f"{count / _MEGA:.1f} MB"


class _Stage:
    """A part of the work, which begins when the object is created."""

    def __init__(self, name: str, done: int, total: int, amount: Callable[[float], str], now: float) -> None:
        self.name, self.done, self.total = name, done, total
        self.note: str | None = None
        """Text in place of the rate."""
        self.has_ended = False
        self.task: Any = None
        self._amount, self._first = amount, done
        self._began = self._last_line = now
        self._tenth = 0

    def is_line_due(self, now: float) -> bool:
        """Return True if a line is due, and start the next interval."""
        tenth, waited = 10 * self.done // self.total if self.total else 0, now - self._last_line
        if waited < _MAX_INTERVAL and (waited < _MIN_INTERVAL or tenth == self._tenth):
            return False
        self._last_line, self._tenth = now, tenth
        return True

    def rate(self, now: float) -> str:
        """Format the rate: "84 a second", "12 s each" for slow units, "" before the first unit is done."""
        done, seconds = self.done - self._first, now - self._began
        if self.note is not None or done == 0 or seconds <= 0:
            return self.note or ""
        per_second = done / seconds
        return f"{self._amount(per_second)} a second" if per_second >= 0.1 else f"{duration_text(1 / per_second)} each"

    def count(self) -> str:
        """Format the finished units: "120 of 840", and "" for a stage without a count."""
        if not self.total:
            return self._amount(self.done) if self.done else ""
        return f"{self._amount(self.done)} of {self._amount(self.total)}"

    def so_far(self, now: float) -> str:
        """Format the progress: "120 of 840, 20 a second, 36 s left"."""
        done, seconds = self.done - self._first, now - self._began
        parts = [self.count() or duration_text(seconds), self.rate(now)]
        if done and self.done < self.total:
            parts.append(f"{duration_text(seconds * (self.total - self.done) / done)} left")
        return ", ".join(filter(None, parts))

    def at_the_end(self, now: float) -> str:
        """Format the total: "840 in 42 s, 20 a second"; "" for a short stage without a count."""
        duration = duration_text(now - self._began)
        if not self.done:
            return duration if now - self._began >= _LONG_SECONDS else ""
        if self.done < self.total:
            return f"stopped after {self.count()}"
        return ", ".join(filter(None, (f"{self._amount(self.done)} in {duration}", self.rate(now))))


class Progress:
    """Progress of stages, usable as a lopa.export.progress.ProgressCallback. Use it as a context, from any thread.

    A stage with a count ends when all is done, and one without a count when another begins. `amount` formats an amount,
    e.g. bytes. `quiet` shows neither bars nor lines. `transient` bars are removed at the end, and no line follows them.
    """

    def __init__(
        self, amount: Callable[[float], str] = count_text, *, quiet: bool = False, transient: bool = False
    ) -> None:
        self._amount, self._quiet, self._transient, self._began = amount, quiet, transient, _now()
        self._stages: dict[str, _Stage] = {}
        self._current: _Stage | None = None
        self._lock = threading.RLock()
        console = None if quiet else terminal_console()
        self._bars = None if console is None else _new_bars(console, transient=transient)
        """The bars, or None without a terminal."""

    @property
    def on_terminal(self) -> bool:
        """True if bars are shown."""
        return self._bars is not None

    @property
    def seconds(self) -> float:
        """Seconds since this object was created."""
        return _now() - self._began

    def __enter__(self) -> Self:
        if self._bars is not None:
            try:
                self._bars.start()
            except BaseException:  # Ctrl-C: the cursor is hidden already
                self._bars.stop()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stage in self._stages.values():
            if error is None or stage.total:
                self._end(stage)
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Report that `done` of `total` of `stage` is done. Both are 0 for a stage without a count."""
        with self._lock:
            known = self._stages.get(stage)
            if known is None or (known.has_ended and done < known.total):
                self.stage(stage, total)
            self._current = self._stages[stage]
            self.advance(done, total)

    def stage(self, name: str, total: int = 0, *, done: int = 0) -> None:
        """Begin a stage of `total` units, `done` of which were finished earlier. `total` is 0 without a count."""
        with self._lock:
            if self._current is not None and not self._current.total:
                self._end(self._current)
            stage = self._current = self._stages[name] = _Stage(name, done, total, self._amount, _now())
            if self._bars is not None:
                stage.task = self._bars.add_task(name, total=total or None, completed=done, amount="")
            else:
                self._log(f"{name} ({self._amount(total)})" if total else name)

    def advance(self, done: int, total: int | None = None, *, note: str | None = None) -> None:
        """Report that `done` units of the last stage are finished.

        `total`, if given, replaces the expected number. `note`, if given, is shown in place of the rate.
        """
        with self._lock:
            stage, now = self._current, _now()
            assert stage is not None
            stage.done, stage.total = done, stage.total if total is None else total
            stage.note = note
            if self._bars is not None:
                amount = ", ".join(filter(None, (stage.count(), stage.rate(now))))
                self._bars.update(stage.task, completed=done, total=stage.total or None, amount=amount)
            if stage.total and done >= stage.total:
                self._end(stage)
            elif self._bars is None and stage.is_line_due(now):
                self._log(f"{stage.name}: {stage.so_far(now)}")

    def line(self, text: str) -> None:
        """Print a line above the bars, also if `quiet`."""
        if self._bars is not None:
            self._bars.console.print(text, soft_wrap=True, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def _end(self, stage: _Stage) -> None:
        if stage.has_ended:
            return
        stage.has_ended = True
        if self._bars is None:
            if not self._transient and (text := stage.at_the_end(_now())):
                self._log(f"{stage.name}: {text}")
        elif not stage.total:
            self._bars.update(stage.task, completed=stage.done or 1, total=stage.done or 1)

    def _log(self, text: str) -> None:
        if not self._quiet:
            self.line(text)


@contextmanager
def show_progress(what: str, total: int, *, quiet: bool = False) -> Iterator[BenchProgress]:
    """Return a context that shows the progress of one stage of `total` units, which `what` names."""
    with Progress(quiet=quiet) as progress:
        progress.stage(what, total)
        yield progress.advance


def terminal_console() -> Any:
    """Return a console of rich on standard error, or None if it is no terminal."""
    if not sys.stderr.isatty():
        return None
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def _new_bars(console: Any, *, transient: bool) -> Any:
    """Return bars. Standard output is printed above them on a terminal, and unchanged in a file or a pipe."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[amount]}", markup=False),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        redirect_stdout=sys.stdout.isatty(),
        transient=transient,
    )


_now = time.monotonic
