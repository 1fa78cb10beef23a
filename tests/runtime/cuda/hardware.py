"""A CUDA device for tests, which are skipped with a reason if there is none."""

import importlib

import onnxruntime as ort
import pytest

from lopa.runtime.cuda.cuda_calls import MODULE, CudaCalls, load_cuda


def cuda_or_skip() -> CudaCalls:
    """Return the CUDA runtime of a machine with a device, or skip the test."""
    try:
        importlib.import_module(MODULE)
    except ImportError as error:
        pytest.skip(f"needs cuda-bindings: {error}")
    calls = load_cuda()
    code, count = calls.runtime.cudaGetDeviceCount()
    if not count:
        pytest.skip(f"needs a CUDA device: cudaGetDeviceCount returned {code.name}")
    return calls


def devices_or_skip() -> int:
    """Return the number of devices that ONNX Runtime can use, or skip the test."""
    calls = cuda_or_skip()
    found = ort.get_available_providers()
    if "CUDAExecutionProvider" not in found:
        pytest.skip(f"needs onnxruntime-gpu: the installed ONNX Runtime has only {', '.join(found)}")
    return int(calls("cudaGetDeviceCount"))
