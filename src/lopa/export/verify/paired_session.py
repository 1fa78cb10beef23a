"""Two sessions that run the same forwards, so that one can be compared with the other."""

from collections.abc import Callable

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.session import Session

Compare = Callable[[Statistics, Statistics], None]
"""Callback with the statistics of the reference and of the candidate for the same windows."""


class PairedSession:
    """Session protocol on top of two sessions.

    It returns the reference's results, so a decode depends only on these. Each session commits its own rows, so the
    comparison includes the effect of different cached rows on later forwards.
    """

    def __init__(self, reference: Session, candidate: Session, compare: Compare) -> None:
        self._reference = reference
        self._candidate = candidate
        self._compare = compare

    @property
    def device(self) -> str:
        """Devices of both sessions."""
        return f"{self._reference.device} and {self._candidate.device}"

    def forward(self, batch: WindowBatch) -> Statistics:
        """Call Session.forward of both sessions and compare the statistics."""
        expected, found = self._reference.forward(batch), self._candidate.forward(batch)
        self._compare(expected, found)
        return expected

    def commit(self, request: int, branch: int, count: int) -> None:
        """Call Session.commit of both sessions."""
        for session in (self._reference, self._candidate):
            session.commit(request, branch, count)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return the reference's rows."""
        return self._reference.read_rows(request, branch, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Call Session.append_rows of both sessions."""
        for session in (self._reference, self._candidate):
            session.append_rows(request, rows)

    def shorten(self, request: int, count: int) -> None:
        """Call Session.shorten of both sessions."""
        for session in (self._reference, self._candidate):
            session.shorten(request, count)

    def prefix_length(self, request: int) -> int:
        """Return the length, which is the same in both sessions."""
        return self._reference.prefix_length(request)

    def release(self, request: int) -> None:
        """Call Session.release of both sessions."""
        for session in (self._reference, self._candidate):
            session.release(request)

    def close(self) -> None:
        """Call Session.close of both sessions."""
        try:
            self._reference.close()
        finally:
            self._candidate.close()
