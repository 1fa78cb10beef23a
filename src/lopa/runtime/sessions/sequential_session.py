"""A session that runs one forward after another, with padded windows: for comparisons, measurements and tests."""

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch, check_batch
from lopa.runtime.contract.packed_batch import PackedBatch, packed_batch
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import SessionCaller, passed_on


class SequentialSession(SessionCaller):
    """Calls of a session for which every commit means the last forward."""

    append_rows = passed_on(Session.append_rows)
    shorten = passed_on(Session.shorten)
    prefix_length = passed_on(Session.prefix_length)
    close = passed_on(Session.close)

    def __init__(self, inner: Session) -> None:
        super().__init__(inner)
        self._ticket: Ticket | None = None
        """Ticket of the last forward, unless it was released."""

    def run(self, batch: PackedBatch) -> Statistics:
        """Return the statistics [M, ...] of a forward, as Session.start and Session.wait do.

        Rows of the forward before can no longer be read.
        """
        self.release()
        self._ticket = self._inner.start(batch)
        return self._inner.wait(self._ticket)

    def forward(self, batch: WindowBatch) -> Statistics:
        """Return the statistics [R, B, Q, ...] of padded windows, as `run` does. Raises ValueError for mismatched
        arrays too.
        """
        check_batch(batch)
        return statistics_of_windows(self.run(packed_batch(batch)), batch.logits_index.shape)

    def commit(self, request: int, branch: int, count: int) -> None:
        """Commit rows of the last forward as Session.commit does."""
        self._inner.commit(self._last(request), request, branch, count)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return rows of the last forward as Session.read_rows does."""
        return self._inner.read_rows(self._last(request), request, branch, count)

    def free(self, request: int) -> None:
        """Free the request's cache, and the last forward if an exception interrupted it."""
        if self._ticket is not None and request in self._ticket.batch.requests:
            self.release()
        self._inner.free(request)

    def release(self) -> None:
        """Release the last forward."""
        ticket, self._ticket = self._ticket, None
        if ticket is not None:
            self._inner.release(ticket)

    def _last(self, request: int) -> Ticket:
        if self._ticket is None:
            raise RuntimeError(f"rows of request {request} requested after no forward; run a forward with it first")
        return self._ticket


def statistics_of_windows(statistics: Statistics, sampled: tuple[int, ...]) -> Statistics:
    """Return the statistics [M, ...] of all windows as [R, B, Q, ...]."""
    return statistics.mapped(lambda array: array.reshape(*sampled, *array.shape[1:]))
