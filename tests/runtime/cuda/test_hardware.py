"""Hardware tests are skipped with a reason if there is a CUDA provider but no GPU."""

import sys

import pytest
from tests.runtime.cuda.hardware import devices_or_skip
from tests.runtime.cuda.stand_in_cudart import StandInCudart, cudaError_t
from tests.runtime.cuda.stand_in_ort import StandInOrt

from lopa.runtime.cuda.cuda_calls import MODULE


def test_skips_without_a_gpu(machine: StandInOrt, cudart: StandInCudart) -> None:
    assert devices_or_skip() == 4
    cudart.codes["cudaGetDeviceCount"] = [cudaError_t.cudaErrorInsufficientDriver]
    with pytest.raises(pytest.skip.Exception, match="cudaGetDeviceCount returned cudaErrorInsufficientDriver"):
        devices_or_skip()


def test_skips_without_cuda_bindings(machine: StandInOrt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(pytest.skip.Exception, match="needs cuda-bindings"):
        devices_or_skip()


def test_skips_without_the_provider(machine: StandInOrt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(pytest.skip.Exception, match="needs onnxruntime-gpu: the installed ONNX Runtime has only CPU"):
        devices_or_skip()
