"""Two sessions that run the same forwards, so that one can be compared with the other."""

import weakref
from collections.abc import Callable
from typing import TypeVar

from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

T = TypeVar("T")

Compare = Callable[[Statistics, Statistics], None]
"""Callback with the statistics of the reference and of the candidate for the same windows."""


class PairedSession(WrappedSession):
    """Session protocol on top of two sessions.

    It returns the reference's results, so a decode depends only on these. Each session commits its own rows, so the
    comparison includes the effect of different cached rows on later forwards.
    """

    def __init__(self, reference: Session, candidate: Session, compare: Compare) -> None:
        super().__init__(reference)
        self._candidate = candidate
        self._compare = compare
        self._other: weakref.WeakKeyDictionary[Ticket, Ticket] = weakref.WeakKeyDictionary()
        """The candidate's ticket by the reference's."""

    @property
    def device(self) -> str:
        """Devices of both sessions."""
        return f"{self._inner.device} and {self._candidate.device}"

    def start(self, batch: PackedBatch) -> Ticket:
        """Call Session.start of both sessions."""
        ticket = self._inner.start(batch)
        self._other[ticket] = self._candidate.start(batch)
        return ticket

    def wait(self, ticket: Ticket) -> Statistics:
        """Call Session.wait of both sessions and compare the statistics."""
        expected = self._inner.wait(ticket)
        self._compare(expected, self._candidate.wait(self._other[ticket]))
        return expected

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Call Session.commit of both sessions."""
        self._inner.commit(ticket, request, branch, count)
        self._candidate.commit(self._other[ticket], request, branch, count)

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return the reference's rows."""
        return self._inner.read_rows(ticket, request, branch, count)

    def release(self, ticket: Ticket) -> None:
        """Call Session.release of both sessions."""
        self._inner.release(ticket)
        other = self._other.pop(ticket, None)
        if other is not None:
            self._candidate.release(other)

    def close(self) -> None:
        """Close both sessions."""
        try:
            self._inner.close()
        finally:
            self._candidate.close()

    def _run(self, work: Callable[[Session], T]) -> T:
        """Return the reference's result, after `work` on both sessions."""
        result = work(self._inner)
        work(self._candidate)
        return result
