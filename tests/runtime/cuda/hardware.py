"""A CUDA device for a test, which is skipped with its reason where there is none, or nothing that can use it."""

import importlib

import onnxruntime as ort
import pytest

from lopa.runtime.cuda.calls import MODULE, CudaCalls, calls_of_installed_cuda


def cuda_or_skip() -> CudaCalls:
    """The CUDA runtime of a machine with a device."""
    try:
        importlib.import_module(MODULE)
    except ImportError as error:
        pytest.skip(f"needs cuda-bindings: {error}")
    calls = calls_of_installed_cuda()
    code, count = calls.runtime.cudaGetDeviceCount()
    if not count:
        pytest.skip(f"needs a CUDA device: cudaGetDeviceCount says {code.name}")
    return calls


def devices_or_skip() -> int:
    """How many devices ONNX Runtime can use."""
    calls = cuda_or_skip()
    found = ort.get_available_providers()
    if "CUDAExecutionProvider" not in found:
        pytest.skip(f"needs onnxruntime-gpu: ONNX Runtime here has only {', '.join(found)}")
    return int(calls("cudaGetDeviceCount"))
