"""What the tests for running on CUDA share: the stand-in where NVIDIA's cuda-bindings would be."""

import sys
from collections.abc import Iterator

import pytest
from tests.cuda.stand_in_cudart import StandInCudart

from lopa.runtime.cuda_calls import MODULE


@pytest.fixture
def cudart(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInCudart]:
    """What a test allocated must be freed at its end, and no rule broken."""
    found = StandInCudart()
    monkeypatch.setitem(sys.modules, MODULE, found)
    yield found
    assert found.violations == []
    assert found.left == []
