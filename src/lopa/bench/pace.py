"""Rate and remaining time of a task as text. Nothing is printed."""

import time
from collections.abc import Callable

_MINUTE, _HOUR = 60, 3600
_MEGA, _GIGA = 1e6, 1e9
_MIN_INTERVAL, _MAX_INTERVAL = 5.0, 60.0
"""Minimum and maximum seconds between log lines. After the minimum, a line needs another tenth of the work."""


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


class Pace:
    """Rate and remaining time of one task, which starts when the object is created.

    `amount` formats a number of finished units, or of units per second.
    """

    def __init__(
        self, amount: Callable[[float], str] = count_text, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._amount = amount
        self._clock = clock
        self._began = clock()
        self._last_line = self._began
        self._tenth = 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._began

    def line_due(self, done: int, total: int) -> bool:
        """Return True if a log line is due now, and start the next interval."""
        now, tenth = self._clock(), 10 * done // total
        waited = now - self._last_line
        if waited < _MAX_INTERVAL and (waited < _MIN_INTERVAL or tenth == self._tenth):
            return False
        self._last_line, self._tenth = now, tenth
        return True

    def rate(self, done: int) -> str:
        """Format the rate: "84 a second", "12 s each" for slow tasks, "" before the first unit is done."""
        seconds = self.seconds
        if done == 0 or seconds <= 0:
            return ""
        per_second = done / seconds
        return f"{self._amount(per_second)} a second" if per_second >= 0.1 else f"{duration_text(1 / per_second)} each"

    def so_far(self, done: int, total: int) -> str:
        """Format the progress: "120 of 840, 20 a second, 36 s left"."""
        parts = [f"{self._amount(done)} of {self._amount(total)}", self.rate(done)]
        if 0 < done < total:
            parts.append(f"{duration_text(self.seconds * (total - done) / done)} left")
        return ", ".join(filter(None, parts))

    def at_the_end(self, done: int) -> str:
        """Format the total: "840 in 42 s, 20 a second"."""
        return ", ".join(filter(None, (f"{self._amount(done)} in {duration_text(self.seconds)}", self.rate(done))))
