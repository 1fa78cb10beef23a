"""A session that is opened, used and closed on its own thread, for devices that are bound to a thread.

A thread that hangs is abandoned, as with every DeviceWorker.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.device_worker import DeviceWorker
from lopa.runtime.sessions.session import Session

T = TypeVar("T")


class ThreadedSession:
    """Session whose calls run on its own thread. `open_inner` opens the inner session there."""

    def __init__(self, device: str, open_inner: Callable[[], Session]) -> None:
        """Open the inner session. Raises any exception of `open_inner`."""
        self._device = device
        self._worker = DeviceWorker(f"lopa {device}")
        self._closed = False
        try:
            self._inner = self._run(open_inner)
        except BaseException:
            self._worker.stop()
            raise

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run a forward on the thread."""
        return self._run(partial(self._inner.forward, batch))

    def commit(self, request: int, branch: int, count: int) -> None:
        """Commit rows on the thread."""
        self._run(partial(self._inner.commit, request, branch, count))

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return rows of the last forward, read on the thread."""
        return self._run(partial(self._inner.read_rows, request, branch, count))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows on the thread."""
        self._run(partial(self._inner.append_rows, request, rows))

    def shorten(self, request: int, count: int) -> None:
        """Shorten the prefix on the thread."""
        self._run(partial(self._inner.shorten, request, count))

    def prefix_length(self, request: int) -> int:
        """Return the prefix length as Session.prefix_length does."""
        return self._inner.prefix_length(request)

    def release(self, request: int) -> None:
        """Release the request on the thread. The call has no effect after close()."""
        if not self._closed:
            self._run(partial(self._inner.release, request))

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

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")
