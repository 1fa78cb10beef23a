"""Comparisons of sessions, on the verification cases of engines and on random windows."""

from collections.abc import Callable, Collection
from itertools import chain

import numpy as np
from tests.runtime.random_windows import assert_close, assert_same_statistics, random_batch, random_mask
from tests.runtime.sequential import sequential

from lopa.export.verify.cases import Case, cases_from_manifest
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import Session, open_session


def assert_cases_agree(
    bundle: Bundle, session: Session, *, rows: bool = False, taken: Callable[[Case], bool] = lambda _: True
) -> int:
    """Compare statistics, and with `rows` new rows, on cases with several requests, branches, masks and prefixes.

    Only cases for which `taken` is True count. Return the number of forwards, including those that commit prefixes.
    """
    plain = open_session(bundle, "cpu", threads=1)
    forwards = 0
    for case in filter(taken, cases_from_manifest(bundle.manifest, seed=3)):
        forwards += 1 + sum(map(len, case.shape.prefixes))
        for each in (plain, session):
            for slot, request in enumerate(case.window.requests):
                for batch in case.prefix_batches(slot):
                    sequential(each).forward(batch)
                    sequential(each).commit(request, 0, batch.input_ids.shape[2])
        assert_same_statistics(sequential(session).forward(case.window), sequential(plain).forward(case.window))
        for request in case.window.requests if rows else ():
            for branch in range(case.shape.branches):
                _assert_same_rows(session, plain, request, branch, case.shape.width)
        for request in case.window.requests:
            plain.free(request)
            session.free(request)
    plain.close()
    return forwards


def assert_random_windows_agree(session: Session, reference: Session, *, seed: int, turns: int) -> None:
    """Compare random (R, B, W, Q), some of size 1, with prefixes that grow through several tiles."""
    rng = np.random.default_rng(seed)
    forced = [(1, 1, 1, 1), (1, 5, 64, 64), (3, 1, 40, 1), (2, 3, 1, 4)]
    for turn in range(turns):
        count, branches, width, queries = (
            forced[turn] if turn < len(forced) else [int(rng.integers(1, upper)) for upper in (4, 5, 50, 20)]
        )
        requests = [int(request) for request in rng.permutation(4)[:count]]
        starts = [reference.prefix_length(request) for request in requests]
        mask = random_mask(rng, (count, branches, width))
        batch = random_batch(rng, requests, branches, width, queries, starts=starts, mask=mask)
        assert_same_statistics(sequential(session).forward(batch), sequential(reference).forward(batch))
        for request in requests:
            branch, rows = int(rng.integers(branches)), int(rng.integers(width // 2, width + 1))
            if rows:
                _assert_same_rows(session, reference, request, branch, rows)
            for each in (session, reference):
                sequential(each).commit(request, branch, rows)
                assert each.prefix_length(request) == starts[requests.index(request)] + rows
    assert any(reference.prefix_length(request) > 64 for request in range(4))


def assert_growth_agrees(
    bundle: Bundle, session: Session, *, rounds: int = 1, most_branches: int = 2, width: int = 30, ends: Collection[int]
) -> dict[int, int]:
    """Compare two requests, together and alone, whose prefixes grow.

    Number 0 is released before the turns `ends`. Return the committed rows of each at the end.
    """
    plain = open_session(bundle, "cpu", threads=1)
    rng = np.random.default_rng(11)
    lengths = {0: 0, 1: 0}
    turns = [(0,), (1,), (0, 1), (1, 0), (0,), (1,), (0,), (0, 1), (1,), (0, 1), (0,)]
    for turn, requests in enumerate(turns * rounds):
        if turn in ends:
            for each in (plain, session):
                each.free(0)
            lengths[0] = 0
        starts = [lengths[request] for request in requests]
        batch = random_batch(rng, requests, 1 + turn % most_branches, width, 20, starts=starts)
        assert_same_statistics(sequential(session).forward(batch), sequential(plain).forward(batch))
        for request in requests:
            count, branch = int(rng.integers(10, width + 1)), int(rng.integers(batch.input_ids.shape[1]))
            for each in (plain, session):
                sequential(each).commit(request, branch, count)
            lengths[request] += count
            assert session.prefix_length(request) == plain.prefix_length(request) == lengths[request]
    plain.close()
    return lengths


def fits(*, prefix: int, window: int) -> Callable[[Case], bool]:
    """Return a filter for cases with at most `prefix` committed rows per request and `window` rows per window."""

    def taken(case: Case) -> bool:
        pieces = [case.shape.width, *chain.from_iterable(case.shape.prefixes)]
        return max(map(sum, case.shape.prefixes)) <= prefix and max(pieces) <= window

    return taken


def _assert_same_rows(found: Session, expected: Session, request: int, branch: int, count: int) -> None:
    ours, theirs = (sequential(each).read_rows(request, branch, count).layers for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)
