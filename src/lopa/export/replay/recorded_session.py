"""Session that records the inputs of its last forward with prefixes. Every commit copies its rows to host memory."""

import numpy as np

from lopa.export.replay.answered_forward import AnsweredForward
from lopa.runtime.contract import CacheRows, Statistics, WindowBatch
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, PrefixCache, PrefixStack
from lopa.runtime.sessions.session import Session


class RecordedSession:
    """Session protocol on top of `inner`. `last_forward` returns the recording."""

    def __init__(self, inner: Session, shape: CacheShape) -> None:
        self._inner = inner
        self._shape = shape
        self._caches: dict[int, PrefixCache] = {}
        self._last: tuple[WindowBatch, Statistics] | None = None

    @property
    def device(self) -> str:
        """Device of the inner session."""
        return self._inner.device

    def last_forward(self) -> AnsweredForward:
        """Return copies of the last forward's inputs and results. Call this before any of its rows is committed."""
        assert self._last is not None, "no forward yet"
        batch, statistics = self._last
        branches, width = batch.input_ids.shape[1:]
        rows = [
            [self._inner.read_rows(request, branch, width).layers for branch in range(branches)]
            for request in batch.requests
        ]
        prefix = PrefixStack(self._shape).prefix([self._cache(request) for request in batch.requests])
        return AnsweredForward(
            batch,
            Prefix(prefix.block.copy(), prefix.mask.copy()),
            statistics,
            tuple(
                np.stack([[layers[i] for layers in of_request] for of_request in rows])
                for i in range(self._shape.arrays)
            ),
        )

    def forward(self, batch: WindowBatch) -> Statistics:
        """Call and record Session.forward."""
        self._last = None
        statistics = self._inner.forward(batch)
        self._last = (batch, statistics)
        return statistics

    def commit(self, request: int, branch: int, count: int) -> None:
        """Call Session.commit, and copy the rows."""
        rows = self._inner.read_rows(request, branch, count)
        self._inner.commit(request, branch, count)
        self._cache(request).append(rows.layers)

    def read_rows(self, request: int, branch: int, count: int) -> CacheRows:
        """Call Session.read_rows."""
        return self._inner.read_rows(request, branch, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Call Session.append_rows, and copy the rows."""
        self._inner.append_rows(request, rows)
        self._cache(request).append(rows.layers)

    def shorten(self, request: int, count: int) -> None:
        """Call Session.shorten, and shorten the copy."""
        self._inner.shorten(request, count)
        self._cache(request).shorten(count)

    def prefix_length(self, request: int) -> int:
        """Call Session.prefix_length."""
        return self._inner.prefix_length(request)

    def release(self, request: int) -> None:
        """Call Session.release, and drop the copy."""
        self._inner.release(request)
        self._caches.pop(request, None)

    def close(self) -> None:
        """Call Session.close."""
        self._inner.close()

    def _cache(self, request: int) -> PrefixCache:
        return self._caches.setdefault(request, PrefixCache(self._shape))
