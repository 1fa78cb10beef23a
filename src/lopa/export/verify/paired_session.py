"""Two sessions that are asked the same, so that one can be held against the other forward by forward.

Knows no decoding rule and no tolerance.
"""

from collections.abc import Callable

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.session import Session

Compare = Callable[[Statistics, Statistics], None]
"""Told the reference's answer and the candidate's to the same windows."""


class PairedSession:
    """The Session protocol. The reference's answers are given, so that a decode goes on as it does there.

    Each commits rows of its own: what a cache with other rows does to later forwards is seen too.
    """

    def __init__(self, reference: Session, candidate: Session, compare: Compare) -> None:
        self._reference = reference
        self._candidate = candidate
        self._compare = compare

    @property
    def device(self) -> str:
        """Both."""
        return f"{self._reference.device} beside {self._candidate.device}"

    def forward(self, batch: WindowBatch) -> Statistics:
        """Session.forward on both."""
        expected, found = self._reference.forward(batch), self._candidate.forward(batch)
        self._compare(expected, found)
        return expected

    def commit(self, request: int, branch: int, count: int) -> None:
        """Session.commit on both."""
        for session in (self._reference, self._candidate):
            session.commit(request, branch, count)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """The reference's."""
        return self._reference.read_rows(request, branch, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Session.append_rows on both."""
        for session in (self._reference, self._candidate):
            session.append_rows(request, rows)

    def shorten(self, request: int, count: int) -> None:
        """Session.shorten on both."""
        for session in (self._reference, self._candidate):
            session.shorten(request, count)

    def prefix_length(self, request: int) -> int:
        """The same in both."""
        return self._reference.prefix_length(request)

    def release(self, request: int) -> None:
        """Session.release on both."""
        for session in (self._reference, self._candidate):
            session.release(request)

    def close(self) -> None:
        """Session.close of both."""
        try:
            self._reference.close()
        finally:
            self._candidate.close()
