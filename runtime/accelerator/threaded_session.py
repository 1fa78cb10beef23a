"""A session that is made, used and closed on a thread of its own, for devices that belong to a thread.

Knows no device. The thread is left behind if it never comes back, as every DeviceWorker.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.device_worker import DeviceWorker
from lopa.runtime.sessions.session import LendingSession, Session

T = TypeVar("T")


class ThreadedSession:
    """The Session protocol; `open_inner` makes the session on its thread."""

    def __init__(self, device: str, open_inner: Callable[[], Session]) -> None:
        """Raises what `open_inner` raises."""
        self._device = device
        self._worker = DeviceWorker(f"lopa {device}")
        self._closed = False
        try:
            self.inner = self._run(open_inner)
        except BaseException:
            self._worker.stop()
            raise

    @property
    def device(self) -> str:
        """The device as the user named it."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Session.forward."""
        return self._run(partial(self.inner.forward, batch))

    def commit(self, request: int, branch: int, count: int) -> None:
        """Session.commit."""
        self._run(partial(self.inner.commit, request, branch, count))

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Session.read_rows."""
        return self._run(partial(self.inner.read_rows, request, branch, count))

    def meet(self, others: Sequence[Session]) -> None:
        """LendingSession.meet, of an inner session that lends."""
        if isinstance(self.inner, LendingSession):
            self._run(partial(self.inner.meet, _inner_sessions(others)))

    def lend_rows(self, request: int, branch: int, count: int, borrowers: Sequence[Session]) -> CacheRows:
        """LendingSession.lend_rows, of an inner session that lends; otherwise as read_rows."""
        if not isinstance(self.inner, LendingSession):
            return self.read_rows(request, branch, count)
        return self._run(partial(self.inner.lend_rows, request, branch, count, _inner_sessions(borrowers)))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Session.append_rows."""
        self._run(partial(self.inner.append_rows, request, rows))

    def prefix_length(self, request: int) -> int:
        """Session.prefix_length."""
        return self.inner.prefix_length(request)

    def release(self, request: int) -> None:
        """Session.release; after close() no error."""
        if not self._closed:
            self._run(partial(self.inner.release, request))

    def close(self) -> None:
        """Session.close; closing twice is no error."""
        if self._closed:
            return
        closing = self._worker.submit(self.inner.close)
        self._closed = True
        self._worker.stop()
        closing.result()

    def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise RuntimeError(f"the session on {self._device} was used after close(); expected an open session")
        return self._worker.submit(work).result()


def _inner_sessions(sessions: Sequence[Session]) -> list[Session]:
    return [each.inner if isinstance(each, ThreadedSession) else each for each in sessions]
