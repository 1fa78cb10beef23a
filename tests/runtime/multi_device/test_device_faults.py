"""Devices that fail during a decode: tokens do not change, and the device is reported."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.recorded import TRACES, prompt_of, read_traces
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tests.runtime.failing_device import Failure, failing_devices
from tests.runtime.random_windows import assert_same_statistics, full_mask, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import DevicesLostError
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session

STALL_SECONDS = 2.5
"""Long compared with a forward of the tiny model, even on a busy machine."""

LONG = {"full": "bs32_full", "block_causal": "bs16_block"}


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


def sessions(bundle: Bundle, count: int) -> list[Session]:
    return [open_session(bundle, "cpu", threads=1) for _ in range(count)]


@contextmanager
def with_failures(
    bundle: Bundle, count: int, failures: dict[int, Failure]
) -> Iterator[tuple[BranchParallelSession, Session]]:
    """Yield a session over devices of which some fail, and one on a device of its own."""
    (one,) = sessions(bundle, 1)
    with failing_devices(sessions(bundle, count), failures) as devices:
        session = BranchParallelSession(devices, stall_seconds=STALL_SECONDS)
        yield session, one
        session.close()
    one.close()


def decode(session: Session, bundle: Bundle, attention: str) -> tuple[list[int], list[int]]:
    """Return ids and winners of a prompt that takes at least 13 rounds, with five branches."""
    config, traces = read_traces(TRACES / f"x_long_lopa_bf4_{LONG[attention]}.jsonl.gz")
    longest = max(traces, key=lambda trace: trace["forward_rounds"])
    decoding = LoneDecode(session, prompt_of(longest), params_of(config), bundle.manifest)
    winners = [step.winner for step in decoding.run()]
    return decoding.answer.generated.tolist(), winners


@pytest.fixture(scope="module")
def expected(bundle: Bundle) -> dict[str, tuple[list[int], list[int]]]:
    (one,) = sessions(bundle, 1)
    answers = {window: decode(one, bundle, window) for window in ("full", "block_causal")}
    one.close()
    return answers


@pytest.mark.parametrize(
    ("device", "failure", "attention"),
    [
        (0, Failure("wait", 1), "full"),
        (1, Failure("wait", 1), "block_causal"),
        (2, Failure("wait", 5), "full"),
        (1, Failure("wait", 5, "hangs"), "block_causal"),
        (1, Failure("wait", 5, "answers nonsense"), "full"),
        (0, Failure("commit", 1), "block_causal"),
        (0, Failure("commit", 2, "hangs"), "full"),
        (0, Failure("read_rows", 1), "full"),
        (0, Failure("read_rows", 1), "block_causal"),
        (1, Failure("append_rows", 1), "full"),
        (2, Failure("append_rows", 1, "hangs"), "block_causal"),
    ],
    ids=lambda value: f"{value.method}-{value.call}-{value.manner}" if isinstance(value, Failure) else None,
)
def test_one_device_fails(
    bundle: Bundle,
    expected: dict[str, tuple[list[int], list[int]]],
    device: int,
    failure: Failure,
    attention: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Device 0 computes the prompt and sends its rows to the two others, with either window."""
    with failing_devices(sessions(bundle, 3), {device: failure}) as devices:
        session = BranchParallelSession(devices, stall_seconds=STALL_SECONDS)
        with caplog.at_level(logging.WARNING, logger="lopa"):
            found = decode(session, bundle, attention)
            session.close()
    assert devices[device].failed
    assert found == expected[attention]
    reason = {
        "raises": f"OSError: device {device} broke in {failure.method}",
        "hangs": f"no answer within {STALL_SECONDS} seconds",
        "answers nonsense": "RuntimeError: returned",
    }[failure.manner]
    (lost,) = session.lost
    assert lost.device == f"device {device}"
    assert lost.reason.startswith(reason)
    assert f"device {lost.device} failed" in caplog.text


@pytest.mark.parametrize("seed", range(4))
def test_all_but_one_device_fail_at_random(
    bundle: Bundle, expected: dict[str, tuple[list[int], list[int]]], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 7))
    methods = ["wait", "commit", "read_rows", "append_rows"]
    failures = {
        int(device): Failure(methods[rng.integers(4)], int(rng.integers(1, 8))) for device in rng.permutation(count)[1:]
    }
    window = ("full", "block_causal")[seed % 2]
    with failing_devices(sessions(bundle, count), failures) as devices:
        session = BranchParallelSession(devices)
        assert decode(session, bundle, window) == expected[window]
        assert {lost.device for lost in session.lost} == {device.device for device in devices if device.failed}
        session.close()


@pytest.mark.parametrize("method", ["wait", "commit", "append_rows"])
def test_the_last_device_failing_is_a_clear_error(bundle: Bundle, method: str) -> None:
    call = {"wait": 5, "commit": 2, "append_rows": 1}[method]
    with failing_devices(sessions(bundle, 2), {0: Failure("wait", 4), 1: Failure(method, call)}) as devices:
        session = BranchParallelSession(devices)
        with pytest.raises(DevicesLostError, match="no device is left") as caught:
            decode(session, bundle, "full")
        assert caught.value.exit_code == 3
        for device in devices:
            assert f"{device.device}: OSError" in caught.value.received
        assert len(session.lost) == 2
        with pytest.raises(DevicesLostError, match="no device is left"):
            sequential(session).forward(random_batch(np.random.default_rng(0), [9], 2, 4, 1))
        session.close()


@pytest.mark.parametrize(
    "failure",
    [
        *(Failure("read_rows", call) for call in range(1, 8)),
        *(Failure("append_rows", 1), Failure("commit", 2), Failure("shorten", 1), Failure("free", 1)),
    ],
    ids=lambda failure: f"{failure.method}-{failure.call}",
)
def test_random_calls_of_several_requests(bundle: Bundle, failure: Failure) -> None:
    """Device 0 fails before it sends or gets rows, or drops some. The other recomputes what it had."""
    rng = np.random.default_rng(failure.call)
    with with_failures(bundle, 2, {0: failure}) as both:
        for _ in range(5):
            requests = rng.permutation(3)[: rng.integers(1, 4)].tolist()
            starts, shape = [both[1].prefix_length(each) for each in requests], (len(requests), 2, 12)
            batch = random_batch(rng, requests, 2, 12, 2, starts=starts, mask=full_mask(shape))
            found, expected = (sequential(each).forward(batch) for each in both)
            assert_same_statistics(found, expected)
            for request in requests:
                rows, branch = int(rng.integers(1, 13)), int(failure.method == "append_rows")
                for each in both:
                    sequential(each).commit(request, branch, rows)
            for request in requests:
                length, chosen = int(rng.integers(both[1].prefix_length(request))), rng.random()
                for each in both:
                    if chosen < 0.3:
                        each.shorten(request, length)
                    elif chosen < 0.6:
                        each.free(request)
                assert both[0].prefix_length(request) == both[1].prefix_length(request)
    assert [lost.device for lost in both[0].lost] == ["device 0"]


def test_a_second_commit_does_not_overtake_lost_rows(bundle: Bundle) -> None:
    """Commit twice after one forward. Another device recomputes the first rows before the second ones are appended."""
    rng = np.random.default_rng(6)
    batch, after = (random_batch(rng, [1], 3, 9, 2, starts=at, mask=full_mask((1, 3, 9))) for at in (0, 9))
    with with_failures(bundle, 3, {0: Failure("read_rows", 1)}) as (session, one):
        for each in (one, session):
            sequential(each).forward(batch)
            sequential(each).commit(1, 0, 4)
            sequential(each).commit(1, 2, 5)
            assert each.prefix_length(1) == 9
        with pytest.raises(RuntimeError, match="lost with device device 0"):
            sequential(session).commit(1, 0, 4)
        assert_same_statistics(sequential(session).forward(after), sequential(one).forward(after))


def test_rows_lost_after_their_prefix_was_shortened_are_not_recomputed(bundle: Bundle) -> None:
    """No device has the prefix of that forward any more, so recomputed rows would differ; a new forward is needed."""
    rng = np.random.default_rng(8)
    with with_failures(bundle, 2, {0: Failure("read_rows", 2)}) as (session, _):
        sequential(session).forward(random_batch(rng, [1], 2, 9, 2, mask=full_mask((1, 2, 9))))
        sequential(session).commit(1, 0, 9)
        sequential(session).forward(random_batch(rng, [1], 2, 9, 2, starts=9, mask=full_mask((1, 2, 9))))
        session.shorten(1, 5)
        with pytest.raises(RuntimeError, match="lost with device device 0"):
            sequential(session).commit(1, 0, 9)
        assert session.prefix_length(1) == 5


def test_rows_read_from_a_failing_device_need_another_forward(bundle: Bundle) -> None:
    batch = random_batch(np.random.default_rng(3), [1], 2, 9, 2)
    with with_failures(bundle, 2, {1: Failure("read_rows", 1)}) as (session, _):
        sequential(session).forward(batch)
        with pytest.raises(RuntimeError, match="lost with device device 1"):
            sequential(session).read_rows(1, 1, 9)
        with pytest.raises(RuntimeError, match="lost with device device 1"):
            sequential(session).commit(1, 1, 9)
        assert sequential(session).read_rows(1, 0, 9).count == 9, "rows of the other device"
        sequential(session).forward(batch)
        assert sequential(session).read_rows(1, 1, 9).count == 9


def wrong_arrays(session: Session) -> None:
    batch = random_batch(np.random.default_rng(4), [1], 3, 9, 2)
    sequential(session).forward(replace(batch, window_mask=batch.window_mask[..., :8].copy()))


def wrong_branch(session: Session) -> None:
    sequential(session).forward(random_batch(np.random.default_rng(5), [1], 3, 9, 2))
    sequential(session).commit(1, 3, 2)


@pytest.mark.parametrize("mistake", [wrong_arrays, wrong_branch])
def test_errors_of_the_caller_are_not_faults_of_devices(bundle: Bundle, mistake: Callable[[Session], None]) -> None:
    session = BranchParallelSession(sessions(bundle, 2))
    with pytest.raises(ValueError, match="received"):
        mistake(session)
    assert session.lost == ()
    session.close()
