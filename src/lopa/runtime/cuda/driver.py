"""Properties of a CUDA device by number, from NVIDIA's driver library. This module needs no framework."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

from lopa.runtime.errors import MissingBackendError

LIBRARY = "libcuda.so.1"
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR."""
_NAME_BYTES = 256
FIRST_WITH_FP8 = (8, 9)
"""First compute capability with products of FP8 matrices."""


@dataclass(frozen=True)
class CudaDevice:
    """One GPU, with the properties that compilers depend on."""

    number: int
    """Number in CUDA's order. CUDA_VISIBLE_DEVICES hides and reorders devices."""
    name: str
    """Name, e.g. "NVIDIA H100 80GB HBM3"."""
    capability: str
    """Compute capability, e.g. "9.0"."""
    memory: int
    """Memory size in bytes."""
    cuda: int
    """Version of CUDA that the driver supports, e.g. 13000 for 13.0."""

    @property
    def architecture(self) -> str:
        """Architecture name, e.g. "sm90"."""
        return f"sm{self.capability.replace('.', '')}"


def cuda_device(number: int, library: str = LIBRARY) -> CudaDevice:
    """Return the device with this number. Raises MissingBackendError if the driver or the device is missing."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        raise MissingBackendError(
            f"cannot load NVIDIA's driver library: {error}",
            expected=f"{library} from an NVIDIA driver",
            remedy="run on a machine with an NVIDIA GPU and a driver, and check that nvidia-smi lists the GPU",
        ) from error
    count = ctypes.c_int(0)
    started = cuda.cuInit(0) == 0 and cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
    if not started or not 0 <= number < count.value:
        raise MissingBackendError(
            f"no CUDA device {number}: the driver " + (f"has {count.value}" if started else "does not start"),
            expected="a device number, counted from 0 among the devices that CUDA_VISIBLE_DEVICES allows",
            remedy="check nvidia-smi and CUDA_VISIBLE_DEVICES",
        )
    device = ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    memory = ctypes.c_size_t()
    major, minor, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    for status in (
        cuda.cuDeviceGet(ctypes.byref(device), number),
        cuda.cuDeviceGetName(name, _NAME_BYTES, device),
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device),
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device),
        cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
        cuda.cuDriverGetVersion(ctypes.byref(version)),
    ):
        if status != 0:
            raise MissingBackendError(
                f"cannot query the properties of CUDA device {number} (CUresult {status})",
                expected="a working device",
                remedy="check nvidia-smi",
            )
    return CudaDevice(number, name.value.decode(), f"{major.value}.{minor.value}", memory.value, version.value)


def without_fp8(capabilities: Sequence[str]) -> list[str]:
    """Return the compute capabilities whose GPUs have no fp8 products."""
    return [each for each in capabilities if version_numbers(each) < FIRST_WITH_FP8]


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, e.g. (10, 15, 1, 29) for "10.15.1.29.post1"."""
    numbers = []
    for part in version.split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
