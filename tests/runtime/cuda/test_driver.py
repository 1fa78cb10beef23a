"""Name and compute capability of a GPU, from a stand-in for NVIDIA's driver library."""

import shutil
import subprocess
from pathlib import Path

import pytest

from lopa.runtime.cuda.driver import CudaDevice, cuda_device, version_numbers
from lopa.runtime.errors import MissingBackendError

DRIVER = r"""
#include <stddef.h>
#include <string.h>
static const int counted = COUNT;
int cuInit(unsigned flags) { return flags == 0 && counted > 0 ? 0 : 100; }
int cuDeviceGetCount(int *count) { *count = counted; return 0; }
int cuDeviceGet(int *device, int number) { *device = 40 + number; return number < counted ? 0 : 101; }
int cuDeviceGetName(char *name, int length, int device) {
    strncpy(name, "Stand-in GPU 0", length);
    name[13] += device - 40;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 75 ? 8 + device - 40 : attribute == 76 ? 9 : -1;
    return device == 42 ? 3 : 0;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)80 << 30; return device < 40; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""


def _driver(folder: Path, devices: int) -> str:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler to build the stand-in driver")
    source, library = folder / "driver.c", folder / f"libdriver{devices}.so"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", f"-DCOUNT={devices}", "-o", library, source], check=True, timeout=300)
    return str(library)


def test_device_properties(tmp_path: Path) -> None:
    library = _driver(tmp_path, 3)
    assert cuda_device(0, library) == CudaDevice(0, "Stand-in GPU 0", "8.9", 80 << 30, 13000)
    second = cuda_device(1, library)
    assert (second.name, second.capability, second.architecture) == ("Stand-in GPU 1", "9.9", "sm99")


def test_device_that_cannot_be_queried_raises(tmp_path: Path) -> None:
    with pytest.raises(MissingBackendError, match=r"device 2 .*CUresult 3"):
        cuda_device(2, _driver(tmp_path, 3))


@pytest.mark.parametrize(("devices", "message"), [(0, "does not start"), (3, "has 3")])
def test_missing_device_raises(tmp_path: Path, devices: int, message: str) -> None:
    with pytest.raises(MissingBackendError, match=f"no CUDA device 3: the driver {message}") as caught:
        cuda_device(3, _driver(tmp_path, devices))
    assert caught.value.exit_code == 3


def test_missing_driver_raises(tmp_path: Path) -> None:
    with pytest.raises(MissingBackendError, match="cannot load NVIDIA's driver library") as caught:
        cuda_device(0, str(tmp_path / "libcuda.so.1"))
    assert "nvidia-smi" in caught.value.remedy


def test_version_numbers() -> None:
    assert version_numbers("10.14.1.48.post1") == (10, 14, 1, 48)
    assert version_numbers("10.9") < version_numbers("10.15")
