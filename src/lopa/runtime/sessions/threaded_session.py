"""A session that is opened, used and closed on its own thread, for devices that are bound to a thread.

A thread that hangs is abandoned, as with every DeviceWorker.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from lopa.runtime.sessions.device_worker import DeviceWorker
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

T = TypeVar("T")


class ThreadedSession(WrappedSession):
    """Session whose calls run on its own thread. `open_inner` opens the inner session there."""

    def __init__(self, device: str, open_inner: Callable[[], Session]) -> None:
        """Open the inner session. Raises any exception of `open_inner`."""
        self._worker = DeviceWorker(f"lopa {device}")
        self._device, self._closed = device, False
        try:
            super().__init__(self._worker.submit(open_inner).result())
        except BaseException:
            self._worker.stop()
            raise

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def release(self, ticket: Ticket) -> None:
        """Call Session.release. The call has no effect after close()."""
        if not self._closed:
            super().release(ticket)

    def free(self, request: int) -> None:
        """Call Session.free. The call has no effect after close()."""
        if not self._closed:
            super().free(request)

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

    def _run(self, work: Callable[[Session], T]) -> T:
        self._check_open()
        return self._worker.submit(partial(work, self._inner)).result()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")
