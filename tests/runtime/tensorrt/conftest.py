"""What the tests of tensorrt:N share: bundles with an engine, and stand-ins where TensorRT and a GPU would be."""

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
from lopa.runtime.cuda.calls import MODULE


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInGraphs]:
    """The CUDA runtime of four GPUs. What a test allocated must be freed at its end, and no rule broken."""
    found = StandInGraphs()
    monkeypatch.setitem(sys.modules, MODULE, found)
    monkeypatch.setattr("lopa.runtime.tensorrt.session.cuda_device", lambda number: replace(DEVICE, number=number))
    yield found
    assert found.violations == []
    assert found.left == []


@pytest.fixture
def trt(cuda: StandInGraphs, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module tensorrt, version 11."""
    found = stand_in_tensorrt(11, cuda=cuda)
    monkeypatch.setitem(sys.modules, "tensorrt", found)
    yield found
    assert found.engines.violations == []


@pytest.fixture
def rtx(cuda: StandInGraphs, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """TensorRT for RTX."""
    found = stand_in_tensorrt(RTX, cuda=cuda)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx_bindings", found)
    yield found
    assert found.engines.violations == []


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path, trt: ModuleType) -> Bundle:
    """A standard bundle of the test's own with an engine that says it was verified."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    with_verified(built(path, trt))
    return Bundle.open(path)
