"""A Session with prefix caches in host memory, over any object that computes one forward.

It creates, grows and frees the caches, and keeps the new rows of forwards for commits.
"""

from collections.abc import Sequence
from typing import Protocol

from lopa.runtime.contract import CacheRows, Rows, Statistics, WindowBatch
from lopa.runtime.errors import converted_device_errors
from lopa.runtime.files.stamp import MappedFile
from lopa.runtime.sessions.caching_session import CachingSession
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, PrefixCache, PrefixStack
from lopa.runtime.sessions.session import KeepsOnHost
from lopa.runtime.sessions.soft_rows import SoftRows
from lopa.runtime.sessions.tickets import Ticket


class Forward(Protocol):
    """One forward of the contract, without state per request."""

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Return statistics that the caller may keep, and the new rows in the order of contract.window_names.

        The rows are dtype [R, B, Hkv, W, D] each. The next run may overwrite them.
        """

    def forget_prefix(self) -> None:
        """Drop all references to the prefix of an earlier run."""

    def close(self) -> None:
        """Free all resources."""


class HostSession(CachingSession[Forward, PrefixCache, tuple[Rows, ...]], KeepsOnHost):
    """Session with prefix caches in host memory. `forward` computes in `wait`."""

    def __init__(
        self,
        forward: Forward,
        device: str,
        shape: CacheShape,
        mapped: MappedFile | None = None,
        *,
        hidden_size: int = 0,
    ) -> None:
        """Own `forward`, which reads the file `mapped`. Its new rows are dtype [R, B, Hkv, W, D] each.

        Soft embeddings have `hidden_size` channels, in contract 2.
        """
        super().__init__(forward, device, lambda _: PrefixCache(shape))
        self._mapped, self._shape = mapped, shape
        self._stack = PrefixStack(shape)
        self._last: Ticket | None = None
        """Ticket of the last run, whose rows the next run overwrites."""
        self._soft = SoftRows(shape, hidden_size)

    def wait(self, ticket: Ticket) -> Statistics:
        """Run every window against its request's prefix.

        Raises like Session.wait, and EngineFailedError for any exception of the forward.
        """
        forward = self._open_forward()
        if self._mapped is not None:
            self._mapped.check()
        batch = self._tickets.take(ticket)
        padded = self._soft.padded(batch)
        if self._last is not None and self._last in self._tickets:
            rows = self._tickets.rows(self._last)
            self._tickets.keep(self._last, tuple(array.copy() for array in rows))
        self._last = None
        prefix = self._stack.prefix([self._cache(request) for request in padded.batch.requests])
        with converted_device_errors(self._device):
            statistics, rows = forward.run(padded.batch, prefix)
        self._tickets.keep(ticket, rows)
        self._last = ticket
        return self._soft.keep(batch, padded.packed(statistics))

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Append rows of a forward to the request's prefix. Raises like Session.commit."""
        rows = self._rows(ticket, request, branch, count)
        self._tickets.check_idle(request)
        self._cache(request).append(rows)

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of rows of a forward. Raises like `commit`."""
        return CacheRows(tuple(array.copy() for array in self._rows(ticket, request, branch, count)))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed. Raises ValueError if they do not match this bundle."""
        self._open_forward()
        self._tickets.check_idle(request)
        self._cache(request).append(rows.layers)

    def keep_rows(self, request: int, start: int, count: int) -> CacheRows:
        """Return a copy of committed rows. Raises like Session.keep_rows."""
        return self._with_rows(request, start, count).copied_rows(start, count)

    def free(self, request: int) -> None:
        """Free the request's cache. An unknown request is ignored."""
        self._tickets.free(request)
        self._soft.pop(request, None)
        if self._caches.pop(request, None) is None:
            return
        self._stack = PrefixStack(self._shape)
        if self._forward is not None:
            self._forward.forget_prefix()

    def close(self) -> None:
        """Free the forward and all caches. Closing twice is allowed."""
        forward, self._forward = self._forward, None  # at once, so that a close() after an interrupted one is safe
        if forward is not None:
            forward.close()
        self._mapped = None
        self._tickets.clear()
        self._caches.clear()
        self._soft.clear()
        self._stack = PrefixStack(self._shape)

    def _shorten(self, cache: PrefixCache, count: int) -> None:
        cache.shorten(count)
        self._stack.shorten(cache, count)

    def _rows(self, ticket: Ticket, request: int, branch: int, count: int) -> Sequence[Rows]:
        """Return views [Hkv, count, D] of a forward's new rows."""
        self._open_forward()
        rows, slot = self._tickets.window(ticket, request, branch, count)
        return [array[slot, branch, :, :count] for array in rows]
