"""Session that records the inputs of its last forward with prefixes. Every commit copies its rows to host memory."""

import weakref

import numpy as np

from lopa.export.replay.answered_forward import AnsweredForward
from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch, PaddedBatch, packed_batch, padded_batch
from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix, PrefixCache, PrefixStack
from lopa.runtime.sessions.sequential_session import statistics_of_windows
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession


class RecordedSession(WrappedSession):
    """Session protocol on top of `inner`. `last_forward` returns the recording."""

    def __init__(self, inner: Session, shape: CacheShape) -> None:
        super().__init__(inner)
        self._shape = shape
        self._caches: dict[int, PrefixCache] = {}
        self._padded: weakref.WeakKeyDictionary[Ticket, PaddedBatch] = weakref.WeakKeyDictionary()
        self._last: tuple[Ticket, Statistics] | None = None

    def last_forward(self) -> AnsweredForward:
        """Return copies of the last forward's inputs and results, padding included.

        Call this before any of its rows is committed and before the forward is released.
        """
        assert self._last is not None, "no forward yet"
        ticket, statistics = self._last
        batch = self._padded[ticket].batch
        branches, width = batch.input_ids.shape[1:]
        rows = [
            [self._inner.read_rows(ticket, request, branch, width).layers for branch in range(branches)]
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

    def start(self, batch: PackedBatch) -> Ticket:
        """Start a forward of the padded windows, whose results a graph with padding has to return."""
        self._last = None
        padded = padded_batch(batch)
        ticket = self._inner.start(packed_batch(padded.batch))
        self._padded[ticket] = padded
        return ticket

    def wait(self, ticket: Ticket) -> Statistics:
        """Call and record Session.wait."""
        self._last = None
        every = self._inner.wait(ticket)
        padded = self._padded[ticket]
        statistics = statistics_of_windows(every, padded.batch.logits_index.shape)
        self._last = (ticket, statistics)
        return padded.packed(statistics)

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        """Call Session.commit, and copy the rows."""
        rows = self._inner.read_rows(ticket, request, branch, count)
        self._inner.commit(ticket, request, branch, count)
        self._cache(request).append(rows.layers)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        """Call Session.append_rows, and copy the rows."""
        self._inner.append_rows(request, rows)
        self._cache(request).append(rows.layers)

    def shorten(self, request: int, count: int) -> None:
        """Call Session.shorten, and shorten the copy."""
        self._inner.shorten(request, count)
        self._cache(request).shorten(count)

    def free(self, request: int) -> None:
        """Call Session.free, and drop the copy."""
        self._inner.free(request)
        self._caches.pop(request, None)

    def _cache(self, request: int) -> PrefixCache:
        return self._caches.setdefault(request, PrefixCache(self._shape))
