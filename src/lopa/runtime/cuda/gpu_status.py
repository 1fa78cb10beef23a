"""State of this machine's NVIDIA GPUs, for doctor."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

from lopa.runtime.cuda.cuda_calls import CudaError, load_cuda
from lopa.runtime.cuda.cuda_operators import gpu_text
from lopa.runtime.device_families import FAMILIES, DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install


def find_devices(family: str) -> list[DeviceStatus]:
    """Return a status line for all GPUs, also if only the driver is installed, and one for each."""
    providers, gpus = _providers(), list(_gpus())
    is_here = "CUDAExecutionProvider" in providers or bool(gpus) or has_driver()
    return [DeviceStatus(f"{family}:N", _state(providers), is_here), *gpus]


def has_driver() -> bool:
    """Return True if NVIDIA's kernel module or its programs are installed."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _gpus() -> Iterator[DeviceStatus]:
    for number in itertools.count():
        try:
            yield DeviceStatus(f"cuda:{number}", gpu_text(number))
        except MissingBackendError:  # no more devices
            return


def _providers() -> list[str]:
    try:
        import onnxruntime
    except ImportError:
        return []
    return list(onnxruntime.get_available_providers())


def _state(providers: list[str]) -> str:
    if "CUDAExecutionProvider" not in providers:
        return f"no CUDA provider in ONNX Runtime: {FAMILIES['cuda'].ability.remedy()} on a machine with a GPU"
    try:
        count = load_cuda()("cudaGetDeviceCount")
    except MissingBackendError:
        return f"no cuda-bindings: {pip_install('gpu')}"
    except CudaError as error:
        return error.received
    return f"ready ({count} device{'' if count == 1 else 's'})"
