"""Checks of rows that a session keeps for later requests."""

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.two_tickets import random_rows

from lopa.runtime.contract import Statistics
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.session import KeptRows, Session

_PIECES = ((0, 3), (3, 6), (9, 1), (10, 16), (26, 2))
"""Start and number of the rows of each kept piece. All but the last are within the 27 rows that stay."""


def assert_rows_are_kept(session: Session, error: type[Exception] = RuntimeError) -> None:
    """Compare a request that begins with kept rows to the one that computed them. At most 48 rows are committed.

    The rows outlive their request, and neither it nor a request that uses them changes them.
    """
    rng = np.random.default_rng(3)
    _compute(session, rng, 51, 20)
    _compute(session, rng, 51, 20)
    kept = [session.keep_rows(51, start, count) for start, count in _PIECES]
    assert [each.count for each in kept] == [count for _, count in _PIECES]
    session.shorten(51, 28)
    batch = random_rows(rng, {51: [20, 9]}, {51: 28})
    in_flight = session.start(batch)
    again = session.keep_rows(51, 9, 17)  # rows of a request in flight
    expected = session.wait(in_flight)
    session.commit(in_flight, 51, 1, 9)  # other rows behind the kept ones
    session.release(in_flight)
    _assert_like(session, kept, batch, expected)
    _compute(session, rng, 52, 20)
    session.free(51)
    _assert_like(session, [*kept[:2], again, kept[4]], batch, expected)
    session.append_kept(53, kept)
    session.shorten(53, 5)
    _compute(session, rng, 53, 20)  # over rows that others may still use
    _assert_like(session, kept, batch, expected)
    session.free(52)
    _check_misuse(session, rng, kept, error)
    session.free(53)
    session.free(54)


def _check_misuse(session: Session, rng: np.random.Generator, kept: list[KeptRows], error: type[Exception]) -> None:
    length = session.prefix_length(53)
    for start, count in ((-1, 2), (0, 0), (length, 1), (length - 1, 2)):
        with pytest.raises(ValueError if error is RuntimeError else error, match=f"one or more of the {length} commit"):
            session.keep_rows(53, start, count)
    ticket = session.start(random_rows(rng, {53: [4]}, {53: length}))
    with pytest.raises(error, match="request 53 is in flight"):
        session.append_kept(53, kept)
    session.wait(ticket)
    session.release(ticket)
    assert session.prefix_length(53) == length


def _compute(session: Session, rng: np.random.Generator, request: int, count: int) -> None:
    ticket = session.start(random_rows(rng, {request: [count]}, {request: session.prefix_length(request)}))
    session.wait(ticket)
    session.commit(ticket, request, 0, count)
    session.release(ticket)


def _assert_like(session: Session, rows: list[KeptRows], batch: PackedBatch, expected: Statistics) -> None:
    """Compare the forward of `batch` behind the kept rows in a new request."""
    session.append_kept(54, rows[:1])
    session.append_kept(54, rows[1:])
    assert session.prefix_length(54) == 28
    ticket = session.start(replace(batch, requests=(54,)))
    found = session.wait(ticket)
    session.release(ticket)
    session.free(54)
    for name in ("topk_ids", "topk_logprobs", "entropy"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
