"""Branches over several devices: results of a single session, transfers of rows, and the split of a forward's time.

test_host_session.py tests the behaviour of every session, including several devices.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.lone_decode import LoneDecode
from tests.params import params_of
from tests.runtime.failing_device import FailingDevice
from tests.runtime.kept_rows import assert_rows_are_kept
from tests.runtime.random_windows import (
    assert_close,
    assert_same_statistics,
    block_causal_mask,
    full_mask,
    random_batch,
)
from tests.runtime.requests.overlapping_session import OverlappingSession
from tests.runtime.sequential import sequential

from lopa.cli.files.step_log import record_from_step
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CacheRows, WindowBatch
from lopa.runtime.contract.batch_parts import split_branches
from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.multi_device.branch_session import BranchParallelSession
from lopa.runtime.sessions.session import Session, open_session


@pytest.fixture(scope="module")
def bundle(tiny_bundle: Path) -> Bundle:
    return Bundle.open(tiny_bundle)


@pytest.fixture
def one(bundle: Bundle) -> Iterator[Session]:
    session = open_session(bundle, "cpu", threads=1)
    yield session
    session.close()


def counted_devices(bundle: Bundle, count: int) -> list[FailingDevice]:
    """Return devices on the same core that count their calls and do not fail."""
    return [FailingDevice(open_session(bundle, "cpu", threads=1), f"device {i}") for i in range(count)]


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_random_windows_equal_one_session(bundle: Bundle, one: Session, devices: int) -> None:
    """Requests and branches vary, with more and fewer branches than devices, and commits of any branch between."""
    rng = np.random.default_rng(devices)
    session = BranchParallelSession(counted_devices(bundle, devices))
    for turn in range(12):
        requests = [int(request) for request in rng.permutation(3)[: rng.integers(1, 4)]]
        branches, width = int(rng.integers(1, 10)), int(rng.integers(8, 40))
        shape = (len(requests), branches, width)
        starts = [one.prefix_length(request) for request in requests]
        mask = block_causal_mask(shape, 4) if turn % 2 else full_mask(shape)
        batch = random_batch(rng, requests, branches, width, 3, starts=starts, mask=mask)
        shared = int(rng.integers(0, width))
        batch.input_ids[:, :, :shared] = batch.input_ids[:, :1, :shared]
        assert_same_statistics(sequential(session).forward(batch), sequential(one).forward(batch))
        for request in requests:
            branch, count = int(rng.integers(branches)), int(rng.integers(1, width + 1))
            for found, expected in zip(
                sequential(session).read_rows(request, branch, count).layers,
                sequential(one).read_rows(request, branch, count).layers,
                strict=True,
            ):
                assert_close(found, expected)
            for each in (session, one):
                sequential(each).commit(request, branch, count)
            assert session.prefix_length(request) == one.prefix_length(request)
    assert max(one.prefix_length(request) for request in range(3)) > 64
    assert session.lost == ()
    session.close()


def window_batch(*, full: bool, branches: int) -> WindowBatch:
    """Return one request whose branches are equal up to row 8."""
    shape = (1, branches, 20)
    mask = full_mask(shape) if full else block_causal_mask(shape, 8)
    batch = random_batch(np.random.default_rng(1), [5], branches, 20, 2, mask=mask)
    batch.input_ids[:, :, :8] = batch.input_ids[:, :1, :8]
    return batch


def same_on_every_branch(branches: int) -> WindowBatch:
    """Return a window behind row 8 of request 5, repeated on every branch."""
    one = random_batch(np.random.default_rng(2), [5], 1, 4, 4, starts=8)
    names = ("input_ids", "position_ids", "window_mask", "logits_index")
    return replace(one, **{name: np.repeat(getattr(one, name), branches, axis=1) for name in names})


@pytest.mark.parametrize(("devices", "winner"), [(2, 0), (3, 4), (5, 2), (7, 3)])
def test_only_devices_without_the_rows_receive_them(bundle: Bundle, devices: int, winner: int) -> None:
    """Full window: the winner's device reads and commits, and all others append. Block-causal window: each
    device with a branch commits its own rows, and the others append."""
    shares = split_branches(5, devices)
    owner = next(device for device, share in enumerate(shares) if share.start <= winner < share.stop)
    idle = [device for device, share in enumerate(shares) if share.start == share.stop]
    for full in (True, False):
        counted = counted_devices(bundle, devices)
        session = BranchParallelSession(counted)
        sequential(session).forward(window_batch(full=full, branches=5))
        sequential(session).commit(5, winner, 8)
        found = sequential(session).forward(same_on_every_branch(devices))
        for branch in range(1, devices):  # one branch on every device, so their prefixes are equal
            assert_close(found.topk_logprobs[:, branch], found.topk_logprobs[:, 0])
        session.close()
        append = [device for device in range(devices) if counted[device].calls.get("append_rows")]
        commit = [device for device in range(devices) if counted[device].calls.get("commit")]
        read = [device for device in range(devices) if counted[device].calls.get("read_rows")]
        if full:
            assert (append, commit, read) == ([i for i in range(devices) if i != owner], [owner], [owner])
        else:
            assert (append, commit) == (idle, [i for i in range(devices) if i not in idle])
            assert read == ([owner] if idle else [])


def test_commit_returns_during_the_transfer(bundle: Bundle) -> None:
    """The owner's read stalls. The commit returns, and the next forward of the others waits for the rows."""
    gate = threading.Event()

    class StallingDevice(FailingDevice):
        def read_rows(self, *arguments: object) -> CacheRows:
            gate.wait(60)
            rows: CacheRows = self._session.read_rows(*arguments)  # type: ignore[arg-type]
            return rows

    devices = [StallingDevice(open_session(bundle, "cpu", threads=1), f"device {i}") for i in range(2)]
    session = BranchParallelSession(devices)
    sequential(session).forward(window_batch(full=True, branches=2))
    sequential(session).commit(5, 1, 8)
    assert not gate.is_set()
    assert session.prefix_length(5) == 8
    assert [device._session.prefix_length(5) for device in devices] == [0, 0]
    threading.Timer(0.05, gate.set).start()
    sequential(session).forward(random_batch(np.random.default_rng(2), [5], 2, 4, 4, starts=8))
    assert [device._session.prefix_length(5) for device in devices] == [8, 8]
    session.close()


def test_a_step_records_the_split_of_its_forward(bundle: Bundle, one: Session) -> None:
    config = GenerationConfig(branches=5, max_new_tokens=32)
    prompt = np.arange(3, 40)
    session = BranchParallelSession(counted_devices(bundle, 2))
    decoding = LoneDecode(session, prompt, params_of(config), bundle.manifest)
    steps = [decoding.step() for _ in range(3)]
    session.close()
    for step in steps:
        assert step.split is not None
        slowest = max(device.seconds for device in step.split.devices)
        assert 0 < slowest < step.seconds["forward"]
        assert 0 < step.split.gather < step.seconds["forward"]
        assert sum(device.branches for device in step.split.devices) == len(step.branches)
        assert set(step.seconds) == {"windows", "forward", "select", "commit", "spawn"}
    assert [device.device for device in steps[0].split.devices] == ["device 0"]
    assert [device.device for device in steps[2].split.devices] == ["device 0", "device 1"]
    assert record_from_step(steps[2])["split"]["devices"][1]["branches"] == len(steps[2].branches) // 2
    alone = LoneDecode(one, prompt, params_of(config), bundle.manifest).step()
    assert alone.split is None
    assert "split" not in record_from_step(alone)


@pytest.mark.parametrize(("count", "seconds"), [(0, 60.0), (1, 0.0), (1, -1.0), (1, float("nan"))])
def test_invalid_arguments(bundle: Bundle, count: int, seconds: float) -> None:
    with pytest.raises(ValueError, match=f"{count} sessions and {seconds} seconds"):
        BranchParallelSession(counted_devices(bundle, count), stall_seconds=seconds)


def test_each_device_keeps_rows_in_its_own_memory(bundle: Bundle) -> None:
    devices = [OverlappingSession(open_session(bundle, "cpu", threads=1), memory=memory) for memory in (400, 300)]
    session = BranchParallelSession(devices)
    assert (session.free_rows(), session.rows_per_forward) == (300, None)
    assert_rows_are_kept(session)
    assert session.free_rows() == 300  # kept rows were dropped
    session.close()
