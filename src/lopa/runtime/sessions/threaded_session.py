"""A session that is made, used and closed on a thread of its own, for devices that belong to a thread.

Knows no device. The thread is left behind if it never comes back, as every DeviceWorker.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.device_worker import DeviceWorker
from lopa.runtime.sessions.session import Session

T = TypeVar("T")


class ThreadedSession:
    """The Session protocol; `open_inner` makes the session on its thread."""

    def __init__(self, device: str, open_inner: Callable[[], Session]) -> None:
        """Raises what `open_inner` raises."""
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
        """The device as the user named it."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Session.forward."""
        return self._run(partial(self._inner.forward, batch))

    def commit(self, request: int, branch: int, count: int) -> None:
        """Session.commit."""
        self._run(partial(self._inner.commit, request, branch, count))

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Session.read_rows."""
        return self._run(partial(self._inner.read_rows, request, branch, count))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Session.append_rows."""
        self._run(partial(self._inner.append_rows, request, rows))

    def shorten(self, request: int, count: int) -> None:
        """Session.shorten."""
        self._run(partial(self._inner.shorten, request, count))

    def prefix_length(self, request: int) -> int:
        """Session.prefix_length."""
        return self._inner.prefix_length(request)

    def release(self, request: int) -> None:
        """Session.release; after close() no error."""
        if not self._closed:
            self._run(partial(self._inner.release, request))

    def close(self) -> None:
        """Session.close; closing twice is no error."""
        if self._closed:
            return
        closing = self._worker.submit(self._inner.close)
        self._closed = True
        self._worker.stop()
        closing.result()

    def take_over(self) -> tuple[Session, DeviceWorker]:
        """The session and its thread, for who makes and ends all calls from now on; this one is as closed."""
        self._check_open()
        self._closed = True
        return self._inner, self._worker

    def _run(self, work: Callable[[], T]) -> T:
        self._check_open()
        return self._worker.submit(work).result()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"the session on {self._device} was used after close(); expected an open session")
