"""Fixtures for tests on CUDA: stand-ins for cuda-bindings and ONNX Runtime's CUDA provider."""

import sys
from collections.abc import Iterator

import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.cuda.cuda_calls import MODULE


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInCudart]:
    """Install the stand-in. At the end, check that all memory is freed and no rule was broken."""
    found = StandInCudart()
    monkeypatch.setitem(sys.modules, MODULE, found)
    yield found
    assert found.violations == []
    assert found.left == []


@pytest.fixture
def machine(cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch) -> StandInOrt:
    """Install a machine with CUDA devices. At the end, everything opened must be closed."""
    found = StandInOrt(cudart)
    found.install(monkeypatch)
    return found
