"""What the tests for running on CUDA share: stand-ins where cuda-bindings and ONNX Runtime's CUDA provider would be."""

import sys
from collections.abc import Iterator

import pytest
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.cuda.calls import MODULE


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInCudart]:
    """What a test allocated must be freed at its end, and no rule broken."""
    found = StandInCudart()
    monkeypatch.setitem(sys.modules, MODULE, found)
    yield found
    assert found.violations == []
    assert found.left == []


@pytest.fixture
def machine(cudart: StandInCudart, monkeypatch: pytest.MonkeyPatch) -> StandInOrt:
    """A machine with CUDA devices. What a test opened must be closed at its end."""
    found = StandInOrt(cudart)
    found.put_in_place(monkeypatch)
    return found
