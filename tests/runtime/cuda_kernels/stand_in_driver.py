"""The stand-in for NVIDIA's driver library in this process: launches run the references of launched_kernels.

Use it in a process of its own, because libraries that look for the driver find it from then on. It is not vendor
software.
"""

import ctypes
import subprocess
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tests.runtime.cuda.stand_in_cudart import StandInCudart
from tests.runtime.cuda_kernels.launched_kernels import KERNELS, Launch, launch_of_addresses

from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary, LaunchableKernel, cuda_library

FOLDER = Path(__file__).parent
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 3,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
)
_ILLEGAL_ADDRESS = 700


def built_library(folder: Path, name: str = "libcuda.so.1") -> Path:
    """Compile the stand-in of a library into a folder, and return its path."""
    path, source = folder / name, FOLDER / f"stand_in_{name.partition('.')[0].lower()}.c"
    command = ["gcc", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(path), str(source), "-lm"]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return path


class StandInDriver:
    """The driver of this process."""

    def __init__(self, folder: Path, cudart: StandInCudart) -> None:
        """Load the stand-in before anything loads the real library, and register the operators for the CPU provider."""
        self._cudart = cudart
        self._functions = ctypes.CDLL(str(built_library(folder)), mode=ctypes.RTLD_GLOBAL)
        self.cublaslt = ctypes.CDLL(str(built_library(folder, "libcublasLt.so.13")), mode=ctypes.RTLD_GLOBAL)
        self._variants: dict[int, str] = {}
        cudart.set_driver_device = self.set_device
        self._launch = _LAUNCH(self._run)
        self._functions.stand_in_set_launch(self._launch)
        self.launches: Counter[str] = Counter()
        self.errors: list[str] = []
        """Tracebacks of launches that a reference refused."""
        library = cuda_library()
        assert library is not None
        self.library: CudaLibrary = library
        library.functions.lopa_cuda_select_provider(b"CPUExecutionProvider")

    def watch(self, kernels: Mapping[str, LaunchableKernel]) -> None:
        """Recognize the images of these kernels."""
        for variant, kernel in kernels.items():
            address = ctypes.cast(ctypes.c_char_p(kernel.image), ctypes.c_void_p).value
            assert address is not None
            self._variants[address] = variant

    def set_device(self, number: int) -> None:
        """Make a device current on the calling thread."""
        self._functions.stand_in_set_device(number)

    def set_capturing(self, value: bool) -> None:
        """Say whether a CUDA graph is captured, during which no kernel can be loaded."""
        self._functions.stand_in_set_capturing(int(value))
        self.cublaslt.stand_in_lt_set_capturing(int(value))

    def _run(self, image: int, x: int, y: int, z: int, stream: int | None, arguments: Any) -> int:
        try:
            variant = self._variants[image]
            self.launches[variant] += 1
            launch = launch_of_addresses(variant, (x, y, z), arguments, self._cudart.view)
            if variant.startswith("commit."):
                self.commit(stream, launch)
            else:
                KERNELS[variant.partition(".")[0]][1](launch)
        except Exception:
            self.errors.append(traceback.format_exc())
            return _ILLEGAL_ADDRESS
        return 0

    def commit(self, stream: int | None, launch: Launch) -> None:
        """Enqueue the copies of commit_kernel on the stand-in runtime, in whose memory caches are."""
        table, heads, source_array, source_head, source_row, target_array, target_head, target_row, size = (
            launch.arguments
        )
        cudart, row = self._cudart, int(launch.constants[0]) * size
        assert stream is not None
        assert launch.y % heads == 0
        device = cudart.stream_device(stream)

        def rows(address: int, count: int, *strides: int) -> Any:
            """Return the rows [arrays, heads, count, bytes] from an address on."""
            shape = (launch.y // heads, heads, count)
            length = row * (1 + sum((number - 1) * stride for number, stride in zip(shape, strides, strict=True)))
            assert cudart.device_of(address, length) == device, "memory of another device"
            steps = (*(row * stride for stride in strides), 1)
            return np.lib.stride_tricks.as_strided(cudart.view(address, length), (*shape, row), steps)

        def work() -> None:
            pieces = cudart.view(table, 24 * launch.x).view(np.int64).reshape(launch.x, 3)
            assert 0 < pieces[:, 2].max() <= 8 * launch.z
            for source, target, count in pieces[pieces[:, 2] > 0].tolist():
                read = rows(source, count, source_array, source_head, source_row)
                rows(target, count, target_array, target_head, target_row)[:] = read

        cudart.enqueue(stream, work, (table,))
