"""Behavior of all sessions with caches in host memory, on both engines and on several devices at once."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runtime.random_windows import (
    random_batch,
)
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


def open_devices(bundle: Bundle, devices: str) -> Session:
    """Open one session, or several that share the branches if `devices` has commas."""
    sessions = [open_session(bundle, device, threads=1) for device in devices.split(",")]
    return BranchParallelSession(sessions) if len(sessions) > 1 else sessions[0]


@pytest.fixture(params=["cpu", "numpy", "cpu,numpy,cpu"])
def session(request: pytest.FixtureRequest, bundle: Bundle) -> Iterator[Session]:
    session = open_devices(bundle, request.param)
    yield session
    session.close()


one_device = pytest.mark.parametrize("session", ["cpu", "numpy"], indirect=True)
"""Mark for behavior that differs on several devices (tests/runtime/multi_device/test_branch_session.py)."""


@pytest.fixture
def other(session: Session, bundle: Bundle) -> Iterator[Session]:
    """Open another session of the same kind."""
    other = open_devices(bundle, session.device)
    yield other
    other.close()


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def fill_prefix(session: Session, rng: np.random.Generator, request: int, rows: int) -> None:
    """Commit `rows` rows of a random window."""
    start = session.prefix_length(request)
    sequential(session).forward(random_batch(rng, [request], 1, rows, 1, starts=start))
    sequential(session).commit(request, 0, rows)


def test_rows_and_statistics_survive_the_next_forward(session: Session) -> None:
    rng = generator(4)
    statistics = sequential(session).forward(random_batch(rng, [1], 2, 10, 5))
    rows = sequential(session).read_rows(1, 1, 10)
    kept = [array.copy() for array in (statistics.topk_ids, statistics.topk_logprobs, statistics.entropy)]
    kept_rows = [array.copy() for array in rows.layers]
    sequential(session).forward(random_batch(rng, [1], 2, 10, 5))
    for old, new in zip(kept, (statistics.topk_ids, statistics.topk_logprobs, statistics.entropy), strict=True):
        np.testing.assert_array_equal(old, new)
    for old_rows, new_rows in zip(kept_rows, rows.layers, strict=True):
        np.testing.assert_array_equal(old_rows, new_rows)


def test_shortened_request_equals_a_fresh_one(session: Session, other: Session) -> None:
    """The comparison is exact, except if several devices commit their own rows."""
    assert_shortened_equals_fresh(session, other, exact="," not in session.device)


def test_only_committed_rows_can_be_kept(session: Session) -> None:
    session.shorten(1, 0)
    fill_prefix(session, generator(18), 1, 9)
    for count in (-1, 10):
        with pytest.raises(ValueError, match=rf"received count {count}, expected one from 0 to 9, the committed rows"):
            session.shorten(1, count)
    with pytest.raises(ValueError, match=r"received count 1, expected one from 0 to 0"):
        session.shorten(2, 1)
    session.shorten(1, 9)
    assert (session.prefix_length(1), session.prefix_length(2)) == (9, 0)


@one_device
@pytest.mark.parametrize("ending", ["release", "close"])
def test_cache_is_freed(session: Session, ending: str) -> None:
    """Measure the memory that Python and numpy hold. A cache of 16384 rows holds 42 MB."""
    rng = generator(13)
    sequential(session).forward(random_batch(rng, [1, 2], 1, 4, 1))
    rows = CacheRows(tuple(rng.standard_normal((2, 16384, 32)).astype(np.float32) for _ in range(10)))
    tracemalloc.start()
    try:
        session.append_rows(1, rows)
        sequential(session).forward(random_batch(rng, [1], 1, 4, 1, starts=100))
        sequential(session).forward(random_batch(rng, [1, 2], 1, 4, 1, starts=100))
        held = tracemalloc.get_traced_memory()[0]
        if ending == "release":
            session.free(1)
        else:
            session.close()
        left = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held > 40e6
    assert left < 2e6


def test_wrong_use_raises(session: Session) -> None:
    rng = generator(14)
    with pytest.raises(RuntimeError, match="after no forward"):
        sequential(session).commit(1, 0, 1)
    with pytest.raises(RuntimeError, match="after no forward"):
        sequential(session).read_rows(1, 0, 1)
    sequential(session).forward(random_batch(rng, [1, 2], 3, 5, 2))
    with pytest.raises(RuntimeError, match=r"request 3 .* requests \[1, 2\]"):
        sequential(session).commit(3, 0, 1)
    for branch in (-1, 3):
        with pytest.raises(ValueError, match=rf"received branch {branch}, expected one from 0 to 2"):
            sequential(session).commit(1, branch, 1)
    for count in (-1, 6):
        with pytest.raises(ValueError, match=rf"received count {count}, expected one from 0 to 5"):
            sequential(session).read_rows(1, 0, count)
    with pytest.raises(ValueError, match="received rows"):
        session.append_rows(1, CacheRows((np.ones((2, 3, 32), np.float32),)))
    session.free(2)
    with pytest.raises(RuntimeError, match=r"request 2 requested of .*; the request was freed after that forward"):
        sequential(session).commit(2, 0, 1)
    assert session.prefix_length(1) == session.prefix_length(2) == 0


def test_mismatched_arrays_raise(session: Session) -> None:
    batch = random_batch(generator(15), [1, 2], 3, 5, 2)
    sequential(session).forward(batch)
    for name, wrong in (
        ("requests", replace(batch, requests=(1, 1))),
        ("requests", replace(batch, requests=(1,))),
        ("requests", replace(batch, requests=(1, 2, 2))),
        ("position_ids", replace(batch, position_ids=batch.position_ids[..., :4])),
        ("window_mask", replace(batch, window_mask=batch.window_mask[..., :4])),
        ("logits_index", replace(batch, logits_index=batch.logits_index[:, :2])),
        ("temperature", replace(batch, temperature=batch.temperature[:1])),
        ("input_ids", replace(batch, input_ids=batch.input_ids[0])),
        ("input_ids", replace(batch, input_ids=batch.input_ids[..., :0])),
    ):
        with pytest.raises(ValueError, match=f"received {name}"):
            sequential(session).forward(wrong)


def test_closed_session_raises(session: Session) -> None:
    batch = random_batch(generator(17), [1], 1, 5, 2)
    sequential(session).forward(batch)
    rows = sequential(session).read_rows(1, 0, 2)
    session.close()
    session.close()
    session.free(1)
    assert session.prefix_length(1) == 0
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).commit(1, 0, 1)
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).read_rows(1, 0, 1)
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        sequential(session).forward(batch)
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        session.append_rows(1, rows)
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        session.shorten(1, 0)
