"""A Session with prefix caches in host memory, over any object that computes one forward.

It creates, grows and frees the caches, and keeps the rows of the last forward for commits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lopa.runtime.contract import CacheRows, Rows, Statistics, WindowBatch
from lopa.runtime.contract.forward import check_batch
from lopa.runtime.sessions.device_errors import converted_device_errors
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, PrefixCache, PrefixStack
from lopa.runtime.sessions.session import check_prefix_count, slot_of_rows


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


@dataclass(frozen=True, eq=False)
class _LastForward:
    """Input and new rows of the last forward."""

    batch: WindowBatch
    rows: tuple[Rows, ...]
    """New rows, each dtype [R, B, Hkv, W, D]."""


class HostSession:
    """Session with prefix caches in host memory, computed by `forward`."""

    def __init__(self, forward: Forward, device: str, shape: CacheShape) -> None:
        self._forward: Forward | None = forward
        self._device = device
        self._shape = shape
        self._caches: dict[int, PrefixCache] = {}
        self._stack = PrefixStack(shape)
        self._last: _LastForward | None = None

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix.

        Raises ValueError for mismatched arrays, and EngineFailedError for any exception of the forward.
        """
        forward = self._open_forward()
        check_batch(batch)
        self._last = None
        prefix = self._stack.prefix([self._cache(request) for request in batch.requests])
        with converted_device_errors(self._device):
            statistics, rows = forward.run(batch, prefix)
        self._last = _LastForward(batch, rows)
        return statistics

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix.

        Raises RuntimeError if the last forward did not run the request, and ValueError for an invalid branch or count.
        """
        rows = self._rows(request, branch, count)
        self._cache(request).append(rows)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Return a copy of the first `count` new rows of `branch` in the last forward. Raises like `commit`."""
        return CacheRows(tuple(array.copy() for array in self._rows(request, branch, count)))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed. Raises ValueError if they do not match this bundle."""
        self._open_forward()
        self._cache(request).append(rows.layers)

    def shorten(self, request: int, count: int) -> None:
        """Drop the request's committed rows after the first `count`, as Session.shorten does."""
        self._open_forward()
        check_prefix_count(self.prefix_length(request), count)
        cache = self._caches.get(request)
        if cache is not None:
            cache.shorten(count)
            self._stack.shorten(cache, count)

    def prefix_length(self, request: int) -> int:
        """Return the number of committed rows of the request, or 0 if it is unknown."""
        return self._caches[request].length if request in self._caches else 0

    def release(self, request: int) -> None:
        """Free the request's cache and new rows. An unknown request is ignored."""
        if self._caches.pop(request, None) is None:
            return
        self._stack = PrefixStack(self._shape)
        if self._last is not None and request in self._last.batch.requests:
            self._last = None
        if self._forward is not None:
            self._forward.forget_prefix()

    def close(self) -> None:
        """Free the forward and all caches. Closing twice is allowed."""
        forward, self._forward = self._forward, None  # at once, so that a close() after an interrupted one is safe
        if forward is not None:
            forward.close()
        self._last = None
        self._caches.clear()
        self._stack = PrefixStack(self._shape)

    def _open_forward(self) -> Forward:
        if self._forward is None:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")
        return self._forward

    def _cache(self, request: int) -> PrefixCache:
        if request not in self._caches:
            self._caches[request] = PrefixCache(self._shape)
        return self._caches[request]

    def _rows(self, request: int, branch: int, count: int) -> Sequence[Rows]:
        """Return views [Hkv, count, D] of the last forward's new rows."""
        self._open_forward()
        last = self._last
        slot = slot_of_rows(None if last is None else last.batch, request, branch, count)
        assert last is not None
        return [array[slot, branch, :, :count] for array in last.rows]
