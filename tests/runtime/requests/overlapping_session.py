"""A stand-in for a session on a device: it computes on a thread from `start` on, and its memory may end."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from lopa.runtime import Decoder
from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.batch_parts import PackedPart, part_of_windows, statistics_of_parts
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.errors import DeviceMemoryError
from lopa.runtime.sessions.session import KeptRows, Session
from lopa.runtime.sessions.tickets import Ticket


@dataclass(eq=False)
class _Kept:
    inner: KeptRows
    rows: list[object]

    @property
    def count(self) -> int:
        return self.inner.count


class OverlappingSession:
    """Session over another one whose forwards take random times. Requests do not share what they compute.

    A row that a kept piece and a request share counts once, and at most `memory` rows are cached.
    """

    def __init__(
        self, inner: Session, *, rows_per_forward: int = 10**6, memory: int | None = None, seconds: float = 0.0
    ) -> None:
        self.device, self.rows_per_forward, self.memory = inner.device, rows_per_forward, memory
        self._inner, self._seconds, self._rng = inner, seconds, np.random.default_rng(0)
        self._lock = threading.RLock()
        self._thread = ThreadPoolExecutor(1)
        self._computed: weakref.WeakKeyDictionary[Ticket, Future[tuple[Statistics, dict[int, Ticket]]]]
        self._computed = weakref.WeakKeyDictionary()
        self._rows: dict[int, list[object]] = {}
        self._kept: weakref.WeakSet[_Kept] = weakref.WeakSet()
        self.calls: list[tuple[str, tuple[int, ...]]] = []
        """Name and requests of each start, wait and commit."""
        self.rows_of_forwards: list[list[int]] = []
        self.before: Callable[[str], object] = lambda _: None
        """Function that gets the name of a call before the call."""
        self.in_flight: set[Ticket] = set()
        self.most_in_flight = 0
        self.unseen_rows = 0
        """Rows of memory that other programs have taken, which `free_rows` does not know."""

    def start(self, batch: PackedBatch) -> Ticket:
        self._note("start", *batch.requests)
        assert not any({*batch.requests} & {*each.batch.requests} for each in self.in_flight)
        sizes = [int(batch.lengths[batch.slots == slot].sum()) for slot in range(len(batch.requests))]
        self.rows_of_forwards.append(sizes)
        assert sum(sizes) <= self.rows_per_forward or len(sizes) == 1
        ticket = Ticket(batch)
        self.in_flight.add(ticket)
        self.most_in_flight = max(self.most_in_flight, len(self.in_flight))
        parts = [part_of_windows(batch, batch.slots == slot) for slot in range(len(batch.requests))]
        self._computed[ticket] = self._thread.submit(self._compute, parts)
        return ticket

    def _compute(self, parts: Sequence[PackedPart]) -> tuple[Statistics, dict[int, Ticket]]:
        found, tickets = [], {}
        for part in parts:
            time.sleep(self._rng.exponential(self._seconds))
            with self._lock:
                ticket = self._inner.start(part.batch)
                found.append(self._inner.wait(ticket))
                tickets[part.batch.requests[0]] = ticket
        return statistics_of_parts(parts, found), tickets

    def wait(self, ticket: Ticket) -> Statistics:
        self._note("wait", *ticket.batch.requests)
        self.in_flight.remove(ticket)
        return self._computed[ticket].result()[0]

    def commit(self, ticket: Ticket, request: int, branch: int, count: int) -> None:
        self._note("commit", request)
        self._allocate(request, count)
        with self._lock:
            self._inner.commit(self._computed[ticket].result()[1][request], request, branch, count)
        self._rows.setdefault(request, []).extend(object() for _ in range(count))

    def read_rows(self, ticket: Ticket, request: int, branch: int, count: int) -> CacheRows:
        with self._lock:
            return self._inner.read_rows(self._computed[ticket].result()[1][request], request, branch, count)

    def append_rows(self, request: int, rows: CacheRows) -> None:
        self._check_idle(request)
        self._allocate(request, rows.count)
        with self._lock:
            self._inner.append_rows(request, rows)
        self._rows.setdefault(request, []).extend(object() for _ in range(rows.count))

    def release(self, ticket: Ticket) -> None:
        self.in_flight.discard(ticket)
        computed = self._computed.pop(ticket, None)
        for each in {} if computed is None else computed.result()[1].values():
            with self._lock:
                self._inner.release(each)

    def keep_rows(self, request: int, start: int, count: int) -> KeptRows:
        with self._lock:
            kept = _Kept(self._inner.keep_rows(request, start, count), self._rows[request][start : start + count])
        self._kept.add(kept)
        return kept

    def append_kept(self, request: int, rows: Sequence[Any]) -> None:
        self._check_idle(request)
        self._allocate(request, 0)
        with self._lock:
            self._inner.append_kept(request, [each.inner for each in rows])
        self._rows.setdefault(request, []).extend(row for each in rows for row in each.rows)

    def free_rows(self) -> int | None:
        if self.memory is None:
            return None
        cached = (*self._rows.values(), *(each.rows for each in self._kept))
        return self.memory - len({id(row) for rows in cached for row in rows})

    def shorten(self, request: int, count: int) -> None:
        self._check_idle(request)
        with self._lock:
            self._inner.shorten(request, count)
        del self._rows[request][count:]

    def prefix_length(self, request: int) -> int:
        return len(self._rows.get(request, ()))

    def free(self, request: int) -> None:
        self._check_idle(request)
        with self._lock:
            self._inner.free(request)
        self._rows.pop(request, None)

    def close(self) -> None:
        self._thread.shutdown()

    @property
    def is_empty(self) -> bool:
        """True if no request has rows or a forward."""
        return not any(self._rows.values()) and not self.in_flight and not len(self._computed)

    def _allocate(self, request: int, count: int) -> None:
        free = self.free_rows()
        if free is not None and count > free - self.unseen_rows:
            raise DeviceMemoryError(self.device, request, count)

    def _check_idle(self, request: int) -> None:
        assert not any(request in each.batch.requests for each in self.in_flight)

    def _note(self, name: str, *requests: int) -> None:
        self.calls.append((name, requests))
        self.before(name)


def overlapping(plain: Decoder, **options: Any) -> tuple[Decoder, OverlappingSession]:
    session = OverlappingSession(plain.session, **options)
    return Decoder(plain.bundle, session, plain.tokenizer, threads=1), session
