"""A session whose calls are passed to another session in some way: on a thread, or under a lock."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.session import Session

T = TypeVar("T")


class RelayedSession(ABC):
    """Session that runs the calls of an inner session with `_run`. A subclass sets `_inner` and has `close`."""

    _inner: Session

    def __init__(self, device: str) -> None:
        self._device = device
        self._closed = False

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run a forward."""
        return self._run(partial(self._inner.forward, batch))

    def commit(self, request: int, branch: int, count: int) -> None:
        """Commit rows."""
        self._run(partial(self._inner.commit, request, branch, count))

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return rows of the last forward, read."""
        return self._run(partial(self._inner.read_rows, request, branch, count))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows."""
        self._run(partial(self._inner.append_rows, request, rows))

    def shorten(self, request: int, count: int) -> None:
        """Shorten the prefix."""
        self._run(partial(self._inner.shorten, request, count))

    def prefix_length(self, request: int) -> int:
        """Return the prefix length as Session.prefix_length does."""
        return self._inner.prefix_length(request)

    def release(self, request: int) -> None:
        """Release the request. The call has no effect after close()."""
        if not self._closed:
            self._run(partial(self._inner.release, request))

    @abstractmethod
    def _run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, a call of the inner session. Raises RuntimeError after close()."""

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")
