"""Random work of many requests on the session over packed rows, on the stand-in driver. Two forwards are in flight."""

import os
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.random_windows import assert_same_statistics
from tests.runtime.two_tickets import random_rows

from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.errors import DeviceMemoryError
from lopa.runtime.sessions.prefix_cache import CacheShape
from lopa.runtime.sessions.session import KeptRows, Session
from lopa.runtime.sessions.tickets import Ticket

SECONDS = float(os.environ.get("LOPA_SOAK_SECONDS", "5"))
_REQUESTS = 64
_MAX_ROWS = 4000
_SCALE = 0.3
"""Size of random rows, about that of the model's own."""


@dataclass
class Soak:
    """Requests of a session, with all of their rows on the host."""

    session: Session
    plain: Session
    shape: CacheShape
    cudart: StandInCudart
    device: int
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(13))
    rows: dict[int, list[CacheRows]] = field(default_factory=dict)
    kept: list[tuple[KeptRows, CacheRows]] = field(default_factory=list)
    """First rows of some requests, kept by the session, and the same rows on the host."""
    number: int = 1000
    counts: dict[str, int] = field(default_factory=dict)
    peak: int = 0
    """Most bytes on the device at once."""

    def run(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        flights: list[tuple[Ticket, PackedBatch]] = []
        while time.monotonic() < end or not self.counts.get("memory"):
            while len(self.rows) < _REQUESTS and self.add():
                pass
            busy = {request for _, batch in flights for request in batch.requests}
            idle = [request for request in self.rows if request not in busy]
            chosen = [int(each) for each in self.rng.permutation(idle)[: self.rng.integers(1, 12)]]
            self.peak = max(self.peak, self.cudart.allocated(self.device))
            batch = random_rows(self.rng, {request: self.windows() for request in chosen}, self.lengths(chosen))
            flights.append((self.session.start(batch), batch))
            self.change([request for request in idle if request not in chosen])
            if len(flights) == 2:
                self.finish(*flights.pop(int(self.rng.integers(2))))
        for flight in flights:
            self.finish(*flight)
        for request in list(self.rows):
            self.free(request)
        self.kept.clear()

    def add(self) -> bool:
        """Add a request: with random rows, or with rows that the session keeps. Return False if memory is full."""
        self.number += 1
        shared = self.rng.integers(len(self.kept)) if self.kept and self.rng.random() < 0.4 else None
        pieces = []
        try:
            if shared is not None:
                kept, rows = self.kept[int(shared)]
                self.session.append_kept(self.number, [kept])
                pieces = [rows]
                self.count("kept")
            count = int(self.rng.integers(1, _MAX_ROWS if self.rng.random() < 0.2 else 200))
            added = self.random_rows(count)
            self.session.append_rows(self.number, added)
            self.rows[self.number] = [*pieces, added]
        except DeviceMemoryError:
            self.count("memory")
            self.session.free(self.number)
            self.cudart.capacity = 1 << 34
            return False
        return True

    def change(self, idle: list[int]) -> None:
        """Shorten, free and keep some requests that are not in flight, and take or give device memory."""
        for request in idle:
            action = self.rng.random()
            if action < 0.02:
                self.free(request)
                self.count("freed")
            elif action < 0.05:
                left = int(self.rng.integers(0, self.length(request) + 1))
                self.session.shorten(request, left)
                self.rows[request] = [_first(CacheRows.joined(self.rows[request]), left)] if left else []
                self.count("shortened")
            elif action < 0.07 and self.length(request) > 1:
                count = int(self.rng.integers(1, self.length(request)))
                kept = self.session.keep_rows(request, 0, count)
                self.kept = [*self.kept[-7:], (kept, _first(CacheRows.joined(self.rows[request]), count))]
        if self.rng.random() < 0.1:
            self.cudart.capacity = self.cudart.allocated(self.device) + int(self.rng.integers(1, 1 << 22))
        elif self.rng.random() < 0.3:
            self.cudart.capacity = 1 << 34

    def finish(self, ticket: Ticket, batch: PackedBatch) -> None:
        """Wait for a forward, compare one of its requests with numpy, and commit rows of all."""
        if self.rng.random() < 0.05:
            self.session.wait(ticket)  # cancelled: nothing is committed
            self.session.release(ticket)
            self.count("cancelled")
            return
        statistics = self.session.wait(ticket)
        slot = int(self.rng.integers(len(batch.requests)))
        self.compare(batch, slot, statistics)
        for slot, request in enumerate(batch.requests):
            own = batch.lengths[batch.slots == slot]
            branch = int(self.rng.integers(len(own)))
            count = int(self.rng.integers(0, own[branch] + 1))
            rows = self.session.read_rows(ticket, request, branch, count)
            try:
                self.session.commit(ticket, request, branch, count)
            except DeviceMemoryError:
                self.count("memory")
                continue
            if count:
                self.rows[request].append(rows)
        self.session.release(ticket)

    def compare(self, batch: PackedBatch, slot: int, found: Statistics) -> None:
        request, own = batch.requests[slot], batch.slots == slot
        rows = np.repeat(own, batch.lengths)
        sampled = rows[batch.sampled_rows]
        alone = PackedBatch(
            requests=(request,),
            temperature=batch.temperature[slot : slot + 1],
            slots=np.zeros(int(own.sum()), np.int64),
            lengths=batch.lengths[own],
            input_ids=batch.input_ids[rows],
            position_ids=batch.position_ids[rows],
            mask=batch.mask[np.repeat(own, batch.lengths**2)],
            sampled_rows=batch.sampled_rows[sampled] - int(np.flatnonzero(rows)[0]),
        )
        if self.rows[request]:
            self.plain.append_rows(request, CacheRows.joined(self.rows[request]))
        ticket = self.plain.start(alone)
        expected = self.plain.wait(ticket)
        self.plain.release(ticket)
        self.plain.free(request)
        assert_same_statistics(found.mapped(lambda array: array[sampled]), expected, tolerance=1e-3)
        self.count("compared")

    def free(self, request: int) -> None:
        self.session.free(request)
        del self.rows[request]

    def windows(self) -> list[int]:
        return [int(self.rng.integers(1, 33))] * int(self.rng.integers(1, 5))

    def length(self, request: int) -> int:
        return sum(rows.count for rows in self.rows[request])

    def lengths(self, requests: list[int]) -> dict[int, int]:
        return {request: self.length(request) for request in requests}

    def random_rows(self, count: int) -> CacheRows:
        shape = (self.shape.kv_heads, count, self.shape.head_size)

        def random() -> npt.NDArray[np.float32]:
            return (_SCALE * self.rng.standard_normal(shape)).astype(np.float32)

        return CacheRows(tuple(random() for _ in range(self.shape.arrays)))

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1


def _first(rows: CacheRows, count: int) -> CacheRows:
    return CacheRows(tuple(layer[:, :count].copy() for layer in rows.layers))
