"""Status of this machine's CUDA devices, for `lopa-export doctor`. This module opens no bundle."""

from pathlib import Path

from lopa.runtime.cuda.cuda_calls import CudaError, load_cuda
from lopa.runtime.device_families import FAMILIES, DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import pip_install

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for all GPUs, also if only the driver is installed."""
    providers = _providers()
    is_here = "CUDAExecutionProvider" in providers or NVIDIA_DRIVER.exists()
    return [DeviceStatus(f"{family}:N", _state(providers), is_here)]


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
