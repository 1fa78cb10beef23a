"""Tests that need a CUDA device. They are skipped with a reason elsewhere."""

from pathlib import Path

import numpy as np
import pytest
from tests.runtime.cuda.hardware import cuda_or_skip, devices_or_skip
from tests.runtime.device_contract import DeviceContract, Devices
from tests.runtime.random_windows import assert_same_statistics, random_batch
from tests.runtime.sequential import sequential

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.cuda_operators import VARIABLE
from lopa.runtime.cuda.packed_session import PackedSession
from lopa.runtime.sessions.session import Session, open_session

pytestmark = pytest.mark.cuda


def test_arrays_and_pieces() -> None:
    memory, rng = CudaMemory(cuda_or_skip(), 0), np.random.default_rng(0)
    source = rng.integers(1, 255, (5, 4096), np.uint8)
    start, target = memory.allocate(source.nbytes), memory.allocate(5 * 8192)
    memory.upload(start, source)
    memory.fill_zero(target, 5 * 8192)
    memory.copy_pieces(target + 64, 8192, start, 4096, 4000, 5)
    found = np.empty((5, 8192), np.uint8)
    memory.download(found, target)
    memory.synchronize()
    np.testing.assert_array_equal(found[:, 64:4064], source[:, :4000])
    assert not found[:, :64].any()
    assert not found[:, 4064:].any()
    memory.close()


class TestContract(DeviceContract):
    test_failing_device_is_dropped = None  # type: ignore[assignment]
    test_missing_library_raises = None  # type: ignore[assignment]
    absent = "cudaErrorInvalidDevice"

    @pytest.fixture(params=["auto", "off"])
    def devices(self, request: pytest.FixtureRequest, tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Devices:
        devices_or_skip()
        monkeypatch.setenv(VARIABLE, request.param)
        return Devices(Bundle.open(tiny_bundle), "cuda:{}")

    def opened(self, devices: Devices, count: int = 1) -> Session:
        if devices_or_skip() < count:
            pytest.skip(f"needs {count} CUDA devices")
        return super().opened(devices, count)


def test_operators_agree_with_the_plain_graph(tiny_bfloat16: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare packed rows in captured graphs with padded windows in bfloat16."""
    devices_or_skip()
    sessions = []
    for value in ("auto", "off"):
        monkeypatch.setenv(VARIABLE, value)
        sessions.append(open_session(Bundle.open(tiny_bfloat16), "cuda:0"))
    assert isinstance(sessions[0], PackedSession)
    rng = np.random.default_rng(0)
    for turn in range(6):
        batch = random_batch(rng, [1], 3, 30, 8, starts=30 * turn)
        found, expected = (sequential(session).forward(batch) for session in sessions)
        assert_same_statistics(found, expected, tolerance=0.01)
        for each in sessions:
            sequential(each).commit(1, 1, 30)
    for each in sessions:
        each.close()
