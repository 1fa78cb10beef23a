"""Checks of a session's tickets: two forwards in flight, and every misuse."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest

from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket

_COUNTS = {31: 11, 32: 6, 33: 9}
"""Rows that each request commits per turn, of its last window."""
_TURNS = 4


def random_rows(
    rng: np.random.Generator, windows: Mapping[int, Sequence[int]], starts: Mapping[int, int], *, sampled: int = 3
) -> PackedBatch:
    """Return a packed batch with windows of the given lengths by request, which begin at the positions `starts`."""
    lengths = np.array([length for each in windows.values() for length in each])
    first = np.cumsum(lengths) - lengths
    masks = [rng.random((length, length)) < 0.5 for length in lengths]
    slots = np.repeat(np.arange(len(windows)), [len(each) for each in windows.values()])
    begins = np.array([starts.get(request, 0) for request in windows])[slots]
    return PackedBatch(
        requests=tuple(windows),
        temperature=rng.uniform(0.5, 2, len(windows)).astype(np.float32),
        slots=slots,
        lengths=lengths,
        input_ids=rng.integers(3, 900, int(lengths.sum())),
        position_ids=np.concatenate([begin + np.arange(n) for begin, n in zip(begins, lengths, strict=True)]),
        mask=np.concatenate([(mask | np.eye(len(mask), dtype=np.bool_)).ravel() for mask in masks]),
        sampled_rows=np.concatenate(
            [begin + rng.integers(0, n, sampled) for begin, n in zip(first, lengths, strict=True)]
        ),
    )


def assert_two_forwards_in_flight(session: Session, *, reads: bool = True) -> None:
    """Run forwards of two groups of requests, two at a time and one after another, and compare every bit.

    With two in flight, each group commits while the other is in flight and after it was computed. At most 44 rows are
    committed. Without `reads`, rows are committed only.
    """
    overlapped = _run(session, _overlapped_turn, reads=reads)
    assert [session.prefix_length(request) for request in _COUNTS] == [0, 0, 0]
    in_sequence = _run(session, _sequential_turn, reads=reads)
    assert len(overlapped) == len(in_sequence) > _TURNS
    for found, expected in zip(overlapped, in_sequence, strict=True):
        np.testing.assert_array_equal(found, expected)


def assert_misuse_is_refused(session: Session, error: type[Exception] = RuntimeError) -> None:
    """Check every rule between tickets and requests. Nothing is left in `session`."""
    rng = np.random.default_rng(4)
    first = session.start(random_rows(rng, {41: [9, 7]}, {}))
    rows = _computed(session, random_rows(rng, {42: [9]}, {}), request=42, count=4)
    in_flight = rf"request 41 is in flight with ticket {first.number} of requests \[41\]"
    for use in (
        lambda: session.start(random_rows(rng, {43: [4], 41: [4]}, {})),
        lambda: session.append_rows(41, rows),
        lambda: session.shorten(41, 0),
        lambda: session.free(41),
    ):
        with pytest.raises(error, match=in_flight):
            use()
    _assert_no_rows(session, first, 41, "not waited for", error)
    session.append_rows(42, rows)  # another request may change
    session.shorten(42, 3)
    assert session.prefix_length(42) == 3
    session.wait(first)
    with pytest.raises(error, match="waited for before; expected a started ticket"):
        session.wait(first)
    with pytest.raises(error, match="the request is not part of it"):
        session.commit(first, 42, 0, 1)
    later = session.start(random_rows(rng, {41: [9]}, {}))
    with pytest.raises(error, match="request 41 is in flight"):
        session.commit(first, 41, 0, 4)
    assert session.read_rows(first, 41, 1, 7).count == 7
    session.wait(later)
    session.commit(first, 41, 1, 7)
    session.commit(later, 41, 0, 2)
    assert session.prefix_length(41) == 9
    for ticket in (later, first, first):
        session.release(ticket)
    _assert_no_rows(session, first, 41, "released", error)
    with pytest.raises(error, match="released or of another session"):
        session.wait(first)
    foreign = Ticket(random_rows(rng, {41: [9]}, {}))
    _assert_no_rows(session, foreign, 41, "of another session", error)
    session.release(foreign)
    left = session.start(random_rows(rng, {41: [9]}, {}))
    session.release(left)  # without a wait, the forward is given up
    last = session.start(random_rows(rng, {41: [9], 42: [3]}, {41: 9, 42: 3}))
    session.wait(last)
    session.free(41)
    with pytest.raises(error, match="the request was freed after that forward"):
        session.commit(last, 41, 0, 1)
    session.commit(last, 42, 0, 3)
    assert (session.prefix_length(41), session.prefix_length(42)) == (0, 6)
    session.release(last)
    session.free(42)


def _assert_no_rows(session: Session, ticket: Ticket, request: int, why: str, error: type[Exception]) -> None:
    for use in (session.commit, session.read_rows):
        with pytest.raises(error, match=rf"rows requested of ticket {ticket.number} .*{why}"):
            use(ticket, request, 0, 1)


def _computed(session: Session, batch: PackedBatch, *, request: int, count: int) -> CacheRows:
    ticket = session.start(batch)
    session.wait(ticket)
    rows = session.read_rows(ticket, request, 0, count)
    session.release(ticket)
    return rows


class _Group:
    """One group of requests of a turn, which uses the session as the real callers do."""

    def __init__(self, session: Session, batch: PackedBatch, *, reads: bool) -> None:
        self.session, self.batch, self.reads = session, batch, reads
        self.found: list[np.ndarray] = []
        self.rows: dict[int, CacheRows] = {}

    def start(self) -> None:
        self.ticket = self.session.start(self.batch)

    def wait(self) -> None:
        statistics: Statistics = self.session.wait(self.ticket)
        assert len(statistics.entropy) == len(self.batch.sampled_rows)
        self.found += [statistics.topk_ids, statistics.topk_logprobs, statistics.entropy]

    def commit(self, requests: Sequence[int]) -> None:
        for request in requests:
            branch, count = int(self.batch.windows[self.batch.requests.index(request)]) - 1, _COUNTS[request]
            if self.reads:
                self.rows[request] = self.session.read_rows(self.ticket, request, branch, count)
            self.session.commit(self.ticket, request, branch, count)

    def release(self) -> None:
        self.session.release(self.ticket)


def _run(session: Session, turn: Callable[[int, _Group, _Group], None], *, reads: bool) -> list[np.ndarray]:
    rng, found = np.random.default_rng(9), []
    lengths = ({31: [12, 20, 12], 32: [9]}, {33: [16, 20, 12]})
    for number in range(_TURNS):
        starts = {request: session.prefix_length(request) for request in _COUNTS}
        assert set(starts.values()) == {0} if number == 0 else min(starts.values()) > 0
        first, second = (_Group(session, random_rows(rng, each, starts), reads=reads) for each in lengths)
        turn(number, first, second)
        for group in (first, second):
            found += group.found
            found += [array for request in group.batch.requests if reads for array in group.rows[request].layers]
    for request in _COUNTS:
        session.free(request)
    return found


def _sequential_turn(_: int, *groups: _Group) -> None:
    for group in groups:
        group.start()
        group.wait()
        group.commit(group.batch.requests)
        group.release()


def _overlapped_turn(number: int, *groups: _Group) -> None:
    early, late = groups if number % 2 else groups[::-1]
    for group in groups:
        group.start()
    early.wait()
    in_flight = early.batch.requests[0 if number >= 2 else 1 :]
    early.commit(in_flight)
    if number == 3:
        early.release()
    late.wait()
    late.commit(late.batch.requests)
    if number == 2:
        late.release()
    if in_flight != early.batch.requests:
        early.commit(early.batch.requests[:1])  # rows of a forward before the last
    early.release()
    late.release()  # releasing twice is allowed
