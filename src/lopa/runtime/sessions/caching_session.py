"""Common part of the sessions that compute forwards themselves: a cache for each request, and tickets."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.session import check_kept_rows, check_prefix_count
from lopa.runtime.sessions.tickets import Ticket, Tickets


class RequestRows(Protocol):
    """Cache of one request."""

    @property
    def length(self) -> int:
        """Number of committed rows."""


Forward = TypeVar("Forward")
Cache = TypeVar("Cache", bound=RequestRows)
NewRows = TypeVar("NewRows")


class CachingSession(ABC, Generic[Forward, Cache, NewRows]):
    """Part of a session with caches of a type `Cache`, whose forwards return new rows in a form `NewRows`."""

    def __init__(self, forward: Forward, device: str, new_cache: Callable[[int], Cache]) -> None:
        """Own `forward`. `new_cache` returns an empty cache for a request."""
        self._forward: Forward | None = forward
        self._device, self._new_cache = device, new_cache
        self._caches: dict[int, Cache] = {}
        self._tickets = Tickets[NewRows]()

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def start(self, batch: PackedBatch) -> Ticket:
        """Check and keep `batch`. Raises like Session.start."""
        self._open_forward()
        return self._tickets.start(batch)

    def release(self, ticket: Ticket) -> None:
        """End the use of the forward's new rows."""
        self._tickets.release(ticket)

    def shorten(self, request: int, count: int) -> None:
        """Drop the request's committed rows after the first `count`, as Session.shorten does."""
        self._open_forward()
        self._tickets.check_idle(request)
        check_prefix_count(self.prefix_length(request), count)
        if request in self._caches:
            self._shorten(self._caches[request], count)

    def prefix_length(self, request: int) -> int:
        """Return the number of committed rows of the request, or 0 if it is unknown."""
        return self._caches[request].length if request in self._caches else 0

    def _open_forward(self) -> Forward:
        if self._forward is None:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")
        return self._forward

    def _cache(self, request: int) -> Cache:
        if request not in self._caches:
            self._caches[request] = self._new_cache(request)
        return self._caches[request]

    def _with_rows(self, request: int, start: int, count: int) -> Cache:
        """Return the cache whose rows are kept. Raises like Session.keep_rows."""
        self._open_forward()
        check_kept_rows(self.prefix_length(request), start, count)
        return self._caches[request]

    @abstractmethod
    def _shorten(self, cache: Cache, count: int) -> None:
        """Drop rows of a cache, and copies of them."""
