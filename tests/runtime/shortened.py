"""Comparison of shortened requests with sessions that never had the dropped rows."""

import numpy as np
from tests.runtime.random_windows import assert_same_statistics, batch_of_one, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.contract import CacheRows, Statistics
from lopa.runtime.sessions.session import Session

_REQUESTS = (5, 6, 7)
_BRANCHES, _WIDTH = 2, 40


def assert_shortened_equals_fresh(session: Session, fresh: Session, *, exact: bool, turns: int = 9) -> None:
    """Commit and drop rows in `session` repeatedly, across tiles and down to nothing.

    Before every comparison `fresh` gets only the remaining rows. Forwards of all requests and of the one changed last
    are compared. With `exact` the statistics have the same bits. At most 192 rows are committed.
    """
    rng = np.random.default_rng(21)
    kept = {request: _no_rows(session, request, rng) for request in _REQUESTS}
    for turn in range(turns):
        for request, rows in kept.items():
            assert session.prefix_length(request) == rows.count
            fresh.free(request)
            fresh.append_rows(request, rows)
        starts = [kept[request].count for request in _REQUESTS]
        batch = random_batch(rng, _REQUESTS, _BRANCHES, _WIDTH, 5, starts=starts)
        alone = batch_of_one(batch, (turn - 1) % 3)
        for forwarded in (alone, batch):
            _assert_same(sequential(session).forward(forwarded), sequential(fresh).forward(forwarded), exact=exact)
        for request in _REQUESTS:
            _commit(session, request, kept, int(rng.integers(20, _WIDTH + 1)))
        request = _REQUESTS[turn % 3]
        # Most cuts are in rows that this forward has read. Every third time new rows follow at once.
        left = 0 if turn == 4 else int(rng.integers(kept[request].count // 4, kept[request].count))
        session.shorten(request, left)
        kept[request] = _first(kept[request], left)
        if turn % 3 == 1:
            _commit(session, request, kept, _WIDTH)
    for request in _REQUESTS:
        for each in (session, fresh):
            each.free(request)


def _no_rows(session: Session, request: int, rng: np.random.Generator) -> CacheRows:
    sequential(session).forward(random_batch(rng, (request,), 1, 1, 1))
    return sequential(session).read_rows(request, 0, 0)


def _commit(session: Session, request: int, kept: dict[int, CacheRows], count: int) -> None:
    had, branch = kept[request], _BRANCHES - 1
    if had.count + count > 192:
        return
    new = sequential(session).read_rows(request, branch, count)
    sequential(session).commit(request, branch, count)
    kept[request] = CacheRows(tuple(np.concatenate(both, axis=1) for both in zip(had.layers, new.layers, strict=True)))


def _first(rows: CacheRows, count: int) -> CacheRows:
    return CacheRows(tuple(array[:, :count].copy() for array in rows.layers))


def _assert_same(found: Statistics, expected: Statistics, *, exact: bool) -> None:
    if not exact:
        assert_same_statistics(found, expected)
        return
    for name in ("topk_ids", "topk_logprobs", "entropy"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
