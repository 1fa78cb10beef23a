"""Two forwards in flight on every kind of session, and refused misuse of tickets."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.buckets import bucket
from tests.runtime.accelerator.host_memory import device_session
from tests.runtime.kept_rows import assert_rows_are_kept
from tests.runtime.two_tickets import assert_misuse_is_refused, assert_two_forwards_in_flight, random_rows

from lopa.export.verify.paired_session import PairedSession
from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import EngineFailedError
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.device_worker import ThreadedSession
from lopa.runtime.sessions.session import Session, open_session
from lopa.runtime.sessions.wrapped_session import TypedSession
from lopa.runtime.webgpu.webgpu_session import LockedSession

_BUCKETS = [bucket(1, 2, 24, 64), bucket(2, 3, 24, 64)]


def _opened(bundle: Bundle, device: str) -> Session:
    return open_session(bundle, device, threads=1)


def _branch_parallel(bundle: Bundle, devices: int) -> Session:
    return BranchParallelSession([_opened(bundle, "cpu") for _ in range(devices)])


def _openvino(bundle: Bundle) -> Session:
    pytest.importorskip("openvino")
    return _opened(bundle, "openvino:CPU")


SESSIONS: dict[str, tuple[str, Callable[[Bundle], Session]]] = {
    "cpu": ("tiny_bundle", lambda bundle: _opened(bundle, "cpu")),
    "numpy": ("tiny_bundle", lambda bundle: _opened(bundle, "numpy")),
    "portable": ("tiny_portable", lambda bundle: _opened(bundle, "cpu")),
    "openvino": ("tiny_bundle", _openvino),
    "pipeline": ("tiny_staged", lambda bundle: _opened(bundle, "cpu+cpu")),
    "branches on 2": ("tiny_bundle", lambda bundle: _branch_parallel(bundle, 2)),
    "branches on 3": ("tiny_bundle", lambda bundle: _branch_parallel(bundle, 3)),
    "thread": ("tiny_bundle", lambda bundle: ThreadedSession("there", lambda: _opened(bundle, "cpu"))),
    "lock": ("tiny_bundle", lambda bundle: LockedSession(lambda: _opened(bundle, "cpu"))),
    "typed errors": ("tiny_bundle", lambda bundle: TypedSession(_opened(bundle, "cpu"))),
    "paired": (
        "tiny_bundle",
        lambda bundle: PairedSession(_opened(bundle, "cpu"), _opened(bundle, "numpy"), lambda *_: None),
    ),
    "device memory": ("tiny_portable", lambda bundle: device_session(bundle, _BUCKETS)[0]),
    "fixed addresses": ("tiny_portable", lambda bundle: device_session(bundle, _BUCKETS, fixed_addresses=True)[0]),
    "parts on a device": ("tiny_portable", lambda bundle: device_session(bundle, [bucket(1, 1, 24, 64)])[0]),
}


@pytest.fixture(params=SESSIONS)
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    name, opening = SESSIONS[request.param]
    session = opening(Bundle.open(request.getfixturevalue(name)))
    yield session
    session.close()


def test_two_forwards_in_flight_equal_one_after_another(session: Session) -> None:
    assert_two_forwards_in_flight(session)


def test_misuse_is_refused(session: Session) -> None:
    assert_misuse_is_refused(session, EngineFailedError if isinstance(session, TypedSession) else RuntimeError)


def test_kept_rows_are_those_of_the_request_that_computed_them(session: Session) -> None:
    assert_rows_are_kept(session, EngineFailedError if isinstance(session, TypedSession) else RuntimeError)
    assert (session.rows_per_forward, session.free_rows()) == (None, None)


@pytest.mark.parametrize("session", ["cpu", "numpy", "pipeline", "thread"], indirect=True)
def test_a_wait_that_fails_leaves_the_rest_as_it_was(session: Session) -> None:
    rng = np.random.default_rng(7)
    before = session.start(random_rows(rng, {1: [9]}, {}))
    good = random_rows(rng, {2: [9]}, {})
    bad = session.start(replace(good, input_ids=good.input_ids + 1_000_000))
    session.wait(before)
    with pytest.raises(EngineFailedError):
        session.wait(bad)
    assert (session.prefix_length(1), session.prefix_length(2)) == (0, 0)
    with pytest.raises(RuntimeError, match="released, failed or of another session"):
        session.commit(bad, 2, 0, 1)
    session.commit(before, 1, 0, 9)
    again = session.start(good)
    session.wait(again)
    session.commit(again, 2, 0, 9)
    assert (session.prefix_length(1), session.prefix_length(2)) == (9, 9)


def test_a_failed_device_has_no_rows(tiny_portable: Path) -> None:
    session, engine, _ = device_session(Bundle.open(tiny_portable), _BUCKETS)
    rng = np.random.default_rng(8)
    before, bad = (session.start(random_rows(rng, {request: [9]}, {})) for request in (1, 2))
    session.wait(before)

    def fails(*_: object) -> None:
        raise OSError("the device is gone")

    engine.enqueue = fails  # type: ignore[method-assign]
    with pytest.raises(EngineFailedError, match="the device is gone"):
        session.wait(bad)
    with pytest.raises(RuntimeError, match="released, failed"):
        session.commit(before, 1, 0, 9)
    session.close()


def test_copies_on_a_device_are_freed(tiny_portable: Path) -> None:
    session, _, memory = device_session(Bundle.open(tiny_portable), _BUCKETS)
    rng, blocks = np.random.default_rng(6), []
    for _ in range(3):
        tickets = [session.start(random_rows(rng, {request: [9, 9]}, {})) for request in (1, 2)]
        for ticket in tickets:
            session.wait(ticket)
        blocks.append(len(memory.blocks))
        for ticket in tickets:
            session.release(ticket)
    session.wait(session.start(random_rows(rng, {1: [9, 9]}, {})))
    assert blocks[0] == blocks[1] == blocks[2] == len(memory.blocks) + 1
    session.close()
    assert not memory.blocks


def test_a_forgotten_ticket_counts_as_released(tiny_bundle: Path) -> None:
    session = _opened(Bundle.open(tiny_bundle), "cpu")
    session.start(random_rows(np.random.default_rng(5), {1: [9]}, {}))
    session.free(1)  # nothing is in flight
    session.close()
