"""Sessions held against ONNX Runtime on the CPU in the cases on which engines are checked."""

from collections.abc import Callable
from itertools import chain

from tests.runtime.random_windows import assert_close, assert_same_statistics

from lopa.export.verify.cases import Case, cases_from_manifest
from lopa.runtime.bundle import Bundle
from lopa.runtime.sessions.session import Session, open_session


def assert_cases_agree(
    bundle: Bundle, session: Session, *, rows: bool = False, taken: Callable[[Case], bool] = lambda _: True
) -> int:
    """Requests, branches, masks, padding rows and prefixes: the same statistics, with `rows` the same new rows too.

    Of the cases `taken`; how many forwards they were, those that commit prefixes among them.
    """
    plain = open_session(bundle, "cpu", threads=1)
    forwards = 0
    for case in filter(taken, cases_from_manifest(bundle.manifest, seed=3)):
        forwards += 1 + sum(map(len, case.shape.prefixes))
        for each in (plain, session):
            for slot, request in enumerate(case.window.requests):
                for batch in case.prefix_batches(slot):
                    each.forward(batch)
                    each.commit(request, 0, batch.input_ids.shape[2])
        assert_same_statistics(session.forward(case.window), plain.forward(case.window))
        for request in case.window.requests if rows else ():
            for branch in range(case.shape.branches):
                _assert_same_rows(session, plain, request, branch, case.shape.width)
        for request in case.window.requests:
            plain.release(request)
            session.release(request)
    plain.close()
    return forwards


def fits(*, prefix: int, window: int) -> Callable[[Case], bool]:
    """Cases of at most so many committed rows a request, and of so many rows a window."""

    def taken(case: Case) -> bool:
        pieces = [case.shape.width, *chain.from_iterable(case.shape.prefixes)]
        return max(map(sum, case.shape.prefixes)) <= prefix and max(pieces) <= window

    return taken


def _assert_same_rows(found: Session, expected: Session, request: int, branch: int, count: int) -> None:
    ours, theirs = (each.read_rows(request, branch, count).layers for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one, other)
