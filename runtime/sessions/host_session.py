"""A Session whose prefix caches live in host memory, over any object that computes one forward.

Knows when caches begin, grow and end, and what the last forward left to commit. Does not know how a forward is
computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lopa.runtime.contract import CacheRows, Rows, Statistics, WindowBatch
from lopa.runtime.sessions.device_errors import raised_as_failure_of
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, PrefixCache, PrefixStack


class Forward(Protocol):
    """One forward of the contract, without memory of requests."""

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Statistics that the caller may keep, and the new rows in the order of contract.window_names.

        The rows are each dtype [R, B, Hkv, W, D] and may be overwritten by the next run.
        """

    def forget_prefix(self) -> None:
        """Hold no reference to the prefix of an earlier run."""

    def close(self) -> None:
        """Free everything."""


@dataclass(frozen=True, eq=False)
class _Window:
    """What the last forward left."""

    requests: tuple[int, ...]
    rows: tuple[Rows, ...]
    """Each dtype [R, B, Hkv, W, D]."""


class HostSession:
    """The Session protocol: prefix caches in host memory, computed by `forward`."""

    def __init__(self, forward: Forward, device: str, shape: CacheShape) -> None:
        self._forward: Forward | None = forward
        self._device = device
        self._shape = shape
        self._caches: dict[int, PrefixCache] = {}
        self._stack = PrefixStack(shape)
        self._window: _Window | None = None

    @property
    def device(self) -> str:
        """The device as the user named it."""
        return self._device

    def forward(self, batch: WindowBatch) -> Statistics:
        """Run every window against its request's prefix.

        Raises ValueError when the arrays do not fit together, EngineFailedError for whatever the forward raises.
        """
        forward = self._open_forward()
        check_batch(batch)
        self._window = None
        prefix = self._stack.prefix([self._cache(request) for request in batch.requests])
        with raised_as_failure_of(self._device):
            statistics, rows = forward.run(batch, prefix)
        self._window = _Window(batch.requests, rows)
        return statistics

    def commit(self, request: int, branch: int, count: int) -> None:
        """Append the first `count` window rows of `branch` in the last forward to the request's prefix.

        Raises RuntimeError when the last forward did not run the request, ValueError for a branch or a count that it
        does not have.
        """
        rows = self._rows(request, branch, count)
        self._cache(request).append(rows)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """A copy of the first `count` new rows of `branch` in the last forward; errors as for `commit`."""
        return CacheRows(tuple(array.copy() for array in self._rows(request, branch, count)))

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Append rows that another session computed. Raises ValueError when they do not fit this bundle."""
        self._open_forward()
        self._cache(request).append(rows.layers)

    def prefix_length(self, request: int) -> int:
        """Committed rows of the request, 0 for an unknown one."""
        return self._caches[request].length if request in self._caches else 0

    def release(self, request: int) -> None:
        """Forget the request, its cache and its new rows; an unknown one is no error."""
        if self._caches.pop(request, None) is None:
            return
        self._stack = PrefixStack(self._shape)
        if self._window is not None and request in self._window.requests:
            self._window = None
        if self._forward is not None:
            self._forward.forget_prefix()

    def close(self) -> None:
        """Free the forward and all caches; closing twice is no error."""
        if self._forward is not None:
            self._forward.close()
        self._forward = None
        self._window = None
        self._caches.clear()
        self._stack = PrefixStack(self._shape)

    def put_in_front(self, make: Callable[[Forward, CacheShape], Forward]) -> None:
        """Run every later forward through what `make` builds on this session's forward, e.g. to pad it."""
        self._forward = make(self._open_forward(), self._shape)

    def _open_forward(self) -> Forward:
        if self._forward is None:
            raise RuntimeError(f"the session on {self._device} was used after close(); expected an open session")
        return self._forward

    def _cache(self, request: int) -> PrefixCache:
        if request not in self._caches:
            self._caches[request] = PrefixCache(self._shape)
        return self._caches[request]

    def _rows(self, request: int, branch: int, count: int) -> Sequence[Rows]:
        """Views [Hkv, count, D] of the last forward's new rows."""
        self._open_forward()
        window = self._window
        ran = None
        if window is not None:
            _, branches, _, width, _ = window.rows[0].shape
            ran = (window.requests, branches, width)
        slot = slot_of_rows(ran, request, branch, count)
        assert window is not None
        return [array[slot, branch, :, :count] for array in window.rows]


def slot_of_rows(ran: tuple[tuple[int, ...], int, int] | None, request: int, branch: int, count: int) -> int:
    """The place of `request` in the last forward, which ran these requests with so many branches and window rows.

    Raises RuntimeError when it did not run the request (None: there was no forward), ValueError for a branch or a count
    that it does not have.
    """
    if ran is None or request not in ran[0]:
        what = "no forward" if ran is None else f"a forward of requests {list(ran[0])}"
        raise RuntimeError(f"rows of request {request} wanted after {what}, expected a forward that runs it before")
    requests, branches, width = ran
    if not 0 <= branch < branches:
        raise ValueError(f"received branch {branch}, expected one from 0 to {branches - 1}")
    if not 0 <= count <= width:
        raise ValueError(f"received count {count}, expected one from 0 to {width}, the rows of the window")
    return requests.index(request)


def check_batch(batch: WindowBatch) -> None:
    """Raise ValueError unless the shapes of `batch` agree and its requests are distinct."""
    if batch.input_ids.ndim != 3 or 0 in batch.input_ids.shape:
        raise ValueError(f"received input_ids {batch.input_ids.shape}, expected [R, B, W], none of them 0")
    requests, branches, width = batch.input_ids.shape
    queries = batch.logits_index.shape[-1]
    for name, found, expected in (
        ("requests", (len(set(batch.requests)),), (requests,)),
        ("position_ids", batch.position_ids.shape, (requests, branches, width)),
        ("window_mask", batch.window_mask.shape, (requests, branches, width, width)),
        ("logits_index", batch.logits_index.shape, (requests, branches, queries)),
        ("temperature", batch.temperature.shape, (requests,)),
    ):
        if found != expected:
            raise ValueError(f"received {name} {found}, expected {expected} for input_ids {batch.input_ids.shape}")
    if len(batch.requests) != requests:
        raise ValueError(f"received requests {batch.requests}, expected {requests} distinct numbers")
