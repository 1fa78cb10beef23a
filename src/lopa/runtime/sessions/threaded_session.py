"""A session that is opened, used and closed on its own thread, for devices that are bound to a thread.

A thread that hangs is abandoned, as with every DeviceWorker.
"""

from collections.abc import Callable
from typing import TypeVar

from lopa.runtime.sessions.device_worker import DeviceWorker
from lopa.runtime.sessions.relayed_session import RelayedSession
from lopa.runtime.sessions.session import Session

T = TypeVar("T")


class ThreadedSession(RelayedSession):
    """Session whose calls run on its own thread. `open_inner` opens the inner session there."""

    def __init__(self, device: str, open_inner: Callable[[], Session]) -> None:
        """Open the inner session. Raises any exception of `open_inner`."""
        super().__init__(device)
        self._worker = DeviceWorker(f"lopa {device}")
        try:
            self._inner = self._run(open_inner)
        except BaseException:
            self._worker.stop()
            raise

    def close(self) -> None:
        """Close the inner session on the thread. Closing twice is allowed."""
        if self._closed:
            return
        closing = self._worker.submit(self._inner.close)
        self._closed = True
        self._worker.stop()
        closing.result()

    def take_over(self) -> tuple[Session, DeviceWorker]:
        """Return the inner session and its thread to a new owner. This session then counts as closed."""
        self._check_open()
        self._closed = True
        return self._inner, self._worker

    def _run(self, work: Callable[[], T]) -> T:
        self._check_open()
        return self._worker.submit(work).result()
