"""Which CUDA device a number means, asked of NVIDIA's driver library. Knows no framework and runs nothing."""

import ctypes
from dataclasses import dataclass

from lopa.runtime.errors import MissingBackendError

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NAME_BYTES = 256


@dataclass(frozen=True)
class CudaDevice:
    """One GPU, as compilers for it tell it from others."""

    number: int
    """As CUDA counts it: CUDA_VISIBLE_DEVICES hides and orders devices."""
    name: str
    """E.g. "NVIDIA H100 80GB HBM3"."""
    capability: str
    """Compute capability, e.g. "9.0"."""
    memory: int
    """Bytes of its memory."""

    @property
    def architecture(self) -> str:
        """E.g. "sm90"."""
        return f"sm{self.capability.replace('.', '')}"


def cuda_device(number: int, library: str = LIBRARY) -> CudaDevice:
    """The device of this number. Raises MissingBackendError without a driver or without such a device."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        raise MissingBackendError(
            f"NVIDIA's driver library cannot be loaded: {error}",
            expected=f"{library}, which comes with the driver of an NVIDIA GPU",
            remedy="run on a machine with an NVIDIA GPU, and install its driver until nvidia-smi lists the GPU",
        ) from error
    count = ctypes.c_int(0)
    started = cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    if not started or not 0 <= number < count.value:
        raise MissingBackendError(
            f"CUDA device {number}, where the driver " + (f"has {count.value}" if started else "does not start"),
            expected="a device of this number, counted from 0 among those that CUDA_VISIBLE_DEVICES leaves",
            remedy="check nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    device = ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    for status in (
        cuda.cuDeviceGet(ctypes.byref(device), number),
        cuda.cuDeviceGetName(name, _NAME_BYTES, device),
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device),
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
    ):
        if status != 0:
            raise MissingBackendError(
                f"CUDA device {number} cannot be asked for its properties (CUresult {status})",
                expected="a device that works",
                remedy="check nvidia-smi",
            )
    return CudaDevice(number, name.value.decode(), f"{major.value}.{minor.value}", memory.value)


def version_numbers(version: str) -> tuple[int, ...]:
    """ "10.15.1.29" -> (10, 15, 1, 29); what follows the numbers is left out."""
    numbers = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
