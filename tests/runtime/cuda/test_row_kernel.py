"""Rows copied by the commit kernel on CUDA: launch, result and fallback."""

import inspect
import logging
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.conformance.recorded import assert_reproduced
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda.stand_in_driver import StandInDriver
from tests.runtime.cuda.stand_in_ort import StandInOrt
from tests.runtime.cuda.test_session import with_buckets
from tests.runtime.tensorrt.buckets import DEVICE

from lopa.runtime.accelerator.device_memory import RowPlace, copy_rows
from lopa.runtime.cuda.cuda_calls import CudaCalls
from lopa.runtime.cuda.cuda_memory import CudaMemory
from lopa.runtime.cuda.row_kernel import COMPILER, MODULE, row_kernel_from_plugins
from lopa.runtime.devices import session_from_devices
from lopa.runtime.errors import EngineFailedError
from lopa.runtime.sessions.prefix_cache import CacheShape

HEADS, SIZE, ARRAYS = 3, 32, 4
pytest.importorskip("triton", reason="needs Triton to compile the kernel")


def install_driver(cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch, head_size: int) -> StandInDriver:
    driver = StandInDriver(cudart, head_size)
    monkeypatch.setitem(sys.modules, MODULE, driver)
    monkeypatch.setattr("lopa.runtime.cuda.row_kernel.cuda_device", lambda number: replace(DEVICE, number=number))
    return driver


@pytest.mark.parametrize(("dtype", "count"), [(np.float32, 0), (np.float32, 50), (np.float16, 1), (np.float16, 32)])
def test_one_launch_copies_rows_of_all_arrays(
    cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch, dtype: type[np.floating], count: int
) -> None:
    """Copy from the third window row to the sixth row of caches of another length."""
    driver = install_driver(cudart, monkeypatch, SIZE)
    calls, rng = CudaCalls(cudart), np.random.default_rng(count)
    memory = CudaMemory(calls, 1)
    shape = CacheShape(ARRAYS, HEADS, SIZE, np.dtype(dtype))
    memory.use_row_kernel(row_kernel_from_plugins(1, shape))
    windows, caches = (rng.standard_normal((ARRAYS, HEADS, rows, SIZE)).astype(dtype) for rows in (60, 70))
    row = SIZE * windows.itemsize
    places = []
    for arrays, first in ((windows, 3), (caches, 6)):
        address = memory.allocate(arrays.nbytes)
        memory.upload(address, arrays)
        each = arrays[0].nbytes
        firsts = tuple(address + number * each + first * row for number in range(ARRAYS))
        places.append((address, RowPlace(firsts, arrays.shape[2] * row)))
    (_, source), (address, target) = places
    copy_rows(memory, target, source, count * row, HEADS)
    found = np.empty_like(caches)
    memory.download(found, address)
    memory.synchronize()
    expected = caches.copy()
    expected[:, :, 6 : 6 + count] = windows[:, :, 3 : 3 + count]
    np.testing.assert_array_equal(found, expected)
    assert (driver.launches, cudart.calls["cudaMemcpy2DAsync"]) == (bool(count), 0)
    memory.close()
    assert driver.modules == []


def test_recorded_traces_with_the_kernel(
    tiny_plugins: Path,
    machine: StandInOrt,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    bundle = with_buckets(tiny_plugins, tmp_path / "b")
    driver = install_driver(machine.cudart, monkeypatch, bundle.manifest.dimensions.head_size)
    session = session_from_devices(bundle, ["cuda:0", "cuda:1"])
    assert_reproduced("lopa_bf4_bs32_full", session, bundle.manifest, limit=2)
    session.close()
    assert driver.launches > 5
    assert machine.cudart.calls["cudaMemcpy2DAsync"] == 0


def test_bundle_without_plugins_has_no_kernel(
    tiny_bundle: Path, machine: StandInOrt, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    driver = install_driver(machine.cudart, monkeypatch, SIZE)
    bundle = with_buckets(tiny_bundle, tmp_path / "b")
    session_from_devices(bundle, ["cuda:0"]).close()
    assert driver.loads == 0


def test_rows_are_copied_without_triton(
    cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, COMPILER, None)
    with caplog.at_level(logging.INFO, logger="lopa.runtime.cuda.row_kernel"):
        found = row_kernel_from_plugins(0, CacheShape(2, HEADS, SIZE, np.dtype(np.float32)))
    assert found is None
    assert "one array at a time" in caplog.text


def test_rejected_kernel_raises(cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = install_driver(cudart, monkeypatch, SIZE)
    monkeypatch.setattr(driver, "cuModuleLoadData", lambda _: (driver.CUresult.CUDA_ERROR_INVALID_PTX, None))
    with pytest.raises(
        EngineFailedError, match="cuModuleLoadData of the commit kernel returned CUDA_ERROR_INVALID_PTX"
    ):
        row_kernel_from_plugins(0, CacheShape(2, HEADS, SIZE, np.dtype(np.float32)))


def test_stand_in_matches_the_real_package() -> None:
    real = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    for name in ("cuModuleLoadData", "cuModuleGetFunction", "cuModuleUnload", "cuLaunchKernel"):
        ours = list(inspect.signature(getattr(StandInDriver, name)).parameters)[1:]
        assert ours == list(inspect.signature(getattr(real, name)).parameters), name
    for code in StandInDriver.CUresult:
        assert getattr(real.CUresult, code.name) == code
