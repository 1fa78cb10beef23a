"""How fast a piece of work goes and how long the rest will take, in words. Prints nothing and does no work."""

import time
from collections.abc import Callable

_MINUTE, _HOUR = 60, 3600
_MEGA, _GIGA = 1e6, 1e9
_SOON, _LATE = 5.0, 60.0
"""Seconds after which another line is due in a log: with a tenth of the work more, and in any case."""


def duration_text(seconds: float) -> str:
    """ "0.4 s", "12 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 10:
        return f"{seconds:.1f} s"
    if whole < 2 * _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"


def count_text(count: float) -> str:
    """A number of things, to three digits below a hundred."""
    return f"{count:,.0f}" if count >= 100 or count == int(count) else f"{count:.3g}"


def bytes_text(count: float) -> str:
    """ "9.7 MB", "15.23 GB"."""
    return f"{count / _GIGA:.2f} GB" if count >= _GIGA else f"{count / _MEGA:.1f} MB"


class Pace:
    """Of one piece of work, from the moment this is made.

    `amount` puts a number of what is done, or of what is done in a second, into words.
    """

    def __init__(
        self, amount: Callable[[float], str] = count_text, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._amount = amount
        self._clock = clock
        self._began = clock()
        self._said = self._began
        self._tenth = 0

    @property
    def seconds(self) -> float:
        """So far."""
        return self._clock() - self._began

    def line_due(self, done: int, total: int) -> bool:
        """Whether a log wants a line now; when it says so, the line is taken to be written."""
        now, tenth = self._clock(), 10 * done // total
        waited = now - self._said
        if waited < _LATE and (waited < _SOON or tenth == self._tenth):
            return False
        self._said, self._tenth = now, tenth
        return True

    def rate(self, done: int) -> str:
        """ "84 a second"; "12 s each" for slow work; empty before anything is done."""
        seconds = self.seconds
        if done == 0 or seconds <= 0:
            return ""
        a_second = done / seconds
        return f"{self._amount(a_second)} a second" if a_second >= 0.1 else f"{duration_text(1 / a_second)} each"

    def so_far(self, done: int, total: int) -> str:
        """ "120 of 840, 20 a second, 36 s left"."""
        parts = [f"{self._amount(done)} of {self._amount(total)}", self.rate(done)]
        if 0 < done < total:
            parts.append(f"{duration_text(self.seconds * (total - done) / done)} left")
        return ", ".join(filter(None, parts))

    def at_the_end(self, done: int) -> str:
        """ "840 in 42 s, 20 a second"."""
        return ", ".join(filter(None, (f"{self._amount(done)} in {duration_text(self.seconds)}", self.rate(done))))
