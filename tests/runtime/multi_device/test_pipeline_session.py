"""A pipeline of two stages compared with the whole graph, and failures of a stage."""

import itertools
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.conformance.recorded import assert_reproduced
from tests.runtime.check_cases import assert_random_windows_agree
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential
from tests.runtime.shortened import assert_shortened_equals_fresh

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.contract import CacheRows
from lopa.runtime.errors import BadInputError, EngineFailedError
from lopa.runtime.multi_device import pipeline_session
from lopa.runtime.sessions.bound_forward import BoundForward
from lopa.runtime.sessions.session import Session, open_session

DEVICE = "cpu+cpu"
SAME = 1e-6
"""Tolerance. The vocabulary product is split differently, so float32 sums differ; everything before it is bit-equal."""


@pytest.fixture(scope="module")
def bundle(tiny_staged: Path) -> Bundle:
    return Bundle.open(tiny_staged)


@pytest.fixture
def session(bundle: Bundle) -> Iterator[Session]:
    session = open_session(bundle, DEVICE, threads=1)
    yield session
    session.close()


@pytest.fixture
def whole(bundle: Bundle) -> Iterator[Session]:
    session = open_session(bundle, "cpu", threads=1)
    yield session
    session.close()


def assert_same_rows(found: CacheRows, expected: CacheRows) -> None:
    for ours, theirs in zip(found.layers, expected.layers, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_pipeline_equals_the_whole_graph(session: Session, whole: Session) -> None:
    assert_random_windows_agree(session, whole, seed=1, turns=10)
    batch = random_batch(np.random.default_rng(1), [7], 5, 64, 9)
    for each in (session, whole):
        sequential(each).forward(batch)
    for branch in (0, 4):
        ours, theirs = (sequential(each).read_rows(7, branch, 64) for each in (session, whole))
        assert_same_rows(ours, theirs)
    session.append_rows(8, theirs)
    whole.append_rows(8, theirs)
    after = random_batch(np.random.default_rng(2), [8], 2, 20, 3, starts=64)
    assert_same_statistics(sequential(session).forward(after), sequential(whole).forward(after), SAME)
    assert session.device == DEVICE


def test_a_shortened_request_equals_a_fresh_one(bundle: Bundle, session: Session) -> None:
    fresh = open_session(bundle, DEVICE, threads=1)
    assert_shortened_equals_fresh(session, fresh, exact=True)
    fresh.close()


@pytest.mark.parametrize("name", ["lopa_bf4_bs32_full", "lopa_bf3_bs32_block"])
def test_published_traces_are_reproduced(bundle: Bundle, session: Session, name: str) -> None:
    assert_reproduced(name, session, bundle.manifest, limit=6)


class _SlowForward:
    """A forward that waits for `go`, signals its second call, and delays the end of that call."""

    def __init__(self, engine: BoundForward, go: threading.Event | None) -> None:
        self._engine, self._go = engine, go
        self.runs = 0
        self.ran_twice, self.ended_twice = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run_part(self, *arguments: Any) -> Any:
        assert self._go is None or self._go.wait(timeout=60)
        outputs = self._engine.run_part(*arguments)
        self.runs += 1
        if self.runs == 2:
            self.ran_twice.set()
            time.sleep(0.3)
            self.ended_twice.set()
        return outputs


@pytest.fixture
def slowed(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Session, _SlowForward]]:
    """Return a session and its first stage's forward.

    The second stage starts only after the first has run two micro-batches, and the first stage's second call takes a
    while.
    """
    original = pipeline_session.forward_from_bundle
    engines: list[_SlowForward] = []

    def slow_engine(*given: Any, **named: Any) -> _SlowForward:
        engines.append(_SlowForward(original(*given, **named), engines[0].ran_twice if engines else None))
        return engines[-1]

    monkeypatch.setattr(pipeline_session, "forward_from_bundle", slow_engine)
    session = open_session(bundle, DEVICE, threads=1)
    yield session, engines[0]
    session.close()


def test_a_stage_does_not_wait_for_the_next(slowed: tuple[Session, _SlowForward], whole: Session) -> None:
    """Hidden rows that a stage has passed on do not change."""
    session, _ = slowed
    batch = random_batch(np.random.default_rng(5), [1], 4, 20, 3)
    assert_same_statistics(sequential(session).forward(batch), sequential(whole).forward(batch), SAME)
    for branch in range(4):
        assert_same_rows(sequential(session).read_rows(1, branch, 20), sequential(whole).read_rows(1, branch, 20))


def _break_stage(session: Any, stage: int, micro_batch: int) -> None:
    """Let a stage fail once, on this micro-batch of the next forward."""
    forward = session._forward._stages[stage]._forward
    original, calls = forward.run_part, itertools.count()

    def broken(*arguments: Any) -> Any:
        if next(calls) == micro_batch:
            raise OSError("the stage broke")
        return original(*arguments)

    forward.run_part = broken


def test_no_stage_runs_after_an_error(slowed: tuple[Session, _SlowForward]) -> None:
    """The second stage fails on the first micro-batch while the first stage runs the second one."""
    session, first = slowed
    batch = random_batch(np.random.default_rng(6), [1], 4, 20, 3)
    _break_stage(session, 1, 0)
    with pytest.raises(EngineFailedError, match="the stage broke"):
        sequential(session).forward(batch)
    assert first.ended_twice.is_set()


@pytest.mark.parametrize(("stage", "branch"), [(0, 3), (1, 0)])
def test_an_error_of_a_stage_reaches_the_caller(session: Session, whole: Session, stage: int, branch: int) -> None:
    """A stage fails on the first or the second micro-batch. The next forward is right again."""
    rng = np.random.default_rng(6)
    good, bad = (random_batch(rng, [1], 4, 20, 3) for _ in range(2))
    sequential(session).forward(good)
    _break_stage(session, stage, branch // 2)
    with pytest.raises(EngineFailedError, match="the stage broke"):
        sequential(session).forward(bad)
    with pytest.raises(RuntimeError, match="released, failed"):
        sequential(session).commit(1, 0, 5)
    assert_same_statistics(sequential(session).forward(good), sequential(whole).forward(good), SAME)
    sequential(session).commit(1, 2, 20)
    assert session.prefix_length(1) == 20


def _stage_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "stage" in thread.name]


def test_threads_end_at_close(bundle: Bundle) -> None:
    session = open_session(bundle, DEVICE, threads=1)
    sequential(session).forward(random_batch(np.random.default_rng(7), [1], 2, 5, 1))
    threads = _stage_threads()
    assert len(threads) == 2
    session.close()
    session.close()
    for thread in threads:
        thread.join(20)
    assert _stage_threads() == []
    with pytest.raises(RuntimeError, match="after close"):
        sequential(session).forward(random_batch(np.random.default_rng(7), [1], 2, 5, 1))


@pytest.mark.parametrize("device", ["cpu+", "+cpu", "cpu++cpu", "+", "cuda:0+cuda:0"])
def test_a_pipeline_with_a_missing_or_repeated_part(bundle: Bundle, device: str) -> None:
    with pytest.raises(BadInputError, match="joined by") as caught:
        open_session(bundle, device)
    assert device in caught.value.received


@pytest.mark.parametrize("device", ["numpy+cpu", "cpu+tpu:0"])
def test_a_stage_on_a_device_without_stages(bundle: Bundle, device: str) -> None:
    with pytest.raises(BadInputError):
        open_session(bundle, device)
    for thread in _stage_threads():
        thread.join(20)
        assert not thread.is_alive()


def test_a_wrong_number_of_stages(bundle: Bundle, tiny_bundle: Path) -> None:
    with pytest.raises(BadInputError, match=r"of 3 stages for .* of 2") as caught:
        open_session(bundle, "cpu+cpu+cpu")
    assert "--stages 3" in caught.value.remedy
    with pytest.raises(BadInputError, match=r"of 2 stages for .* of no"):
        open_session(Bundle.open(tiny_bundle), "cpu+cpu")


def test_a_stage_with_the_graph_of_another_stage(tiny_staged: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_staged, tmp_path / "copy"))
    manifest = Bundle.open(copy).manifest
    first, second = manifest.stages
    swapped = [msgspec.structs.replace(first, graph=second.graph), msgspec.structs.replace(second, graph=first.graph)]
    (copy / MANIFEST_NAME).write_bytes(json_from_record(msgspec.structs.replace(manifest, stages=swapped)))
    with pytest.raises(BadInputError, match=r"inputs of .* do not match its manifest"):
        open_session(Bundle.open(copy), DEVICE)
