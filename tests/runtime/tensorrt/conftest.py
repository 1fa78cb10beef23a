"""Fixtures for tests of tensorrt:N: bundles with an engine, and stand-ins for TensorRT and a GPU."""

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from tests.runtime.cuda.stand_in_graphs import StandInGraphs
from tests.runtime.tensorrt.buckets import DEVICE
from tests.runtime.tensorrt.machines import built, with_verified
from tests.runtime.tensorrt.recorded_api import RTX
from tests.runtime.tensorrt.stand_in_tensorrt import stand_in_tensorrt

from lopa.runtime.bundle import Bundle
from lopa.runtime.cuda import cuda_operators
from lopa.runtime.cuda.cuda_calls import MODULE


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInGraphs]:
    """Install the CUDA runtime of four GPUs. At the end, check that all memory is freed and no rule was broken."""
    found = StandInGraphs()
    monkeypatch.setitem(sys.modules, MODULE, found)
    monkeypatch.setattr(cuda_operators, "cuda_library", lambda: None)  # there is no driver to load kernels
    monkeypatch.setattr(
        "lopa.runtime.tensorrt.tensorrt_session.cuda_device", lambda number: replace(DEVICE, number=number)
    )
    yield found
    assert found.violations == []
    assert found.left == []


@pytest.fixture
def trt(cuda: StandInGraphs, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Install the module tensorrt, version 11."""
    found = stand_in_tensorrt(11, cuda=cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", found)
    yield found
    assert found.engines.violations == []


@pytest.fixture
def rtx(cuda: StandInGraphs, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Install TensorRT for RTX."""
    found = stand_in_tensorrt(RTX, cuda=cuda)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", found)
    yield found
    assert found.engines.violations == []


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path, trt: ModuleType) -> Bundle:
    """Return a private copy of a standard bundle with an engine that is marked as verified."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    with_verified(built(path, trt))
    return Bundle.open(path)
