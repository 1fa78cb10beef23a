"""The host library of the operators on CUDA, and the compiled kernels that it launches."""

import ctypes
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lopa.runtime.cpu_kernels.operator_library import FALLBACK, OperatorLibrary, library_path, status_of_missing
from lopa.runtime.errors import EngineFailedError, raise_if_from_handler

DOMAIN = "lopa.cuda"
"""Domain of the operators in graphs (operators.cpp)."""
_MESSAGE_BYTES = 512
_MESSAGE_SIZE = ctypes.c_size_t(_MESSAGE_BYTES)


class _KernelImage(ctypes.Structure):
    """KernelImage of driver.h."""

    _fields_ = (
        ("variant", ctypes.c_char_p),
        ("entry", ctypes.c_char_p),
        ("image", ctypes.c_char_p),
        ("arguments", ctypes.c_int),
        ("scratch", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("shared_bytes", ctypes.c_int),
    )


@dataclass(frozen=True)
class LaunchableKernel:
    """A kernel of an archive (lopa.plugins.kernels)."""

    entry: str
    """Name in the image."""
    image: bytes
    """Cubin or PTX, with a zero at its end."""
    arguments: int
    scratch: int
    """Pointers that Triton adds behind the arguments. These kernels do not use them."""
    threads: int
    """Threads of a block, along x."""
    shared_bytes: int
    """Dynamic shared memory of a block."""


@dataclass(frozen=True)
class CudaLibrary(OperatorLibrary):
    """The host library, loaded into this process."""

    functions: ctypes.CDLL

    def load(self, device: int, kernels: Mapping[str, LaunchableKernel]) -> None:
        """Load kernels for a device, whose context is current on this thread. The first call for a device counts.

        Raises EngineFailedError if the driver rejects one.
        """
        images = (_KernelImage * len(kernels))(
            *(
                _KernelImage(
                    variant.encode(),
                    kernel.entry.encode(),
                    kernel.image,
                    kernel.arguments,
                    kernel.scratch,
                    kernel.threads,
                    kernel.shared_bytes,
                )
                for variant, kernel in kernels.items()
            )
        )
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self.functions.lopa_cuda_load(device, images, len(kernels), message, _MESSAGE_BYTES)
        if message.value:
            is_old = b"older than CUDA" in message.value or b"PTX_VERSION" in message.value
            raise EngineFailedError(
                f"the kernels for cuda:{device} cannot be loaded: {message.value.decode()}",
                expected="kernels that the NVIDIA driver accepts",
                remedy="update the NVIDIA driver" if is_old else "see NVIDIA's documentation of CUresult",
            )

    def launch(
        self, variant: str, grid: tuple[int, int, int], stream: int, *arguments: "ctypes._SimpleCData[Any]"
    ) -> None:
        """Enqueue a kernel on a stream of the current device. Raises EngineFailedError if the driver rejects it."""
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self.functions.lopa_cuda_launch(
            variant.encode(),
            (ctypes.c_int64 * 3)(*grid),
            ctypes.c_void_p(stream),
            addresses,
            len(arguments),
            message,
            _MESSAGE_SIZE,
        )
        if message.value:
            raise EngineFailedError(
                f"{variant}: {message.value.decode()}",
                expected="CUDA_SUCCESS",
                remedy="open the device again",
                operator="LOPA_CUDA_KERNELS=off in the environment runs the plain graph without these kernels",
            )


@cache
def cuda_library() -> CudaLibrary | None:
    """Return the library, or None if it is not installed or this system cannot load it."""
    try:
        return _loaded_library()
    except OSError as error:
        raise_if_from_handler(error)
        return None


def library_status() -> str | None:
    """Return why the library cannot be used and what to do, for users, or None if it can be used."""
    try:
        if _loaded_library() is not None:
            return None
    except OSError as error:
        return f"the library cannot be loaded ({error}){FALLBACK}. Reinstall lopa-export"
    if sys.platform != "linux":
        return f"not available on {sys.platform}{FALLBACK}"
    return status_of_missing(Path(__file__).parent)


def _loaded_library() -> CudaLibrary | None:
    """Return the library, or None if it is not installed. Raises OSError if this system cannot load it."""
    path = library_path(Path(__file__).parent, "_operators")
    if path is None:
        return None
    functions = ctypes.CDLL(str(path))
    functions.lopa_cuda_load.argtypes = (
        ctypes.c_int,
        ctypes.POINTER(_KernelImage),
        ctypes.c_size_t,
        ctypes.c_char_p,
        ctypes.c_size_t,
    )
    functions.lopa_cuda_load.restype = None
    return CudaLibrary(path, functions)
