"""The compiled library of the operators, if this installation has it and the processor can run it.

Without a C++ compiler, or on a processor other than x86-64, the package installs without it. ONNX Runtime's own kernels
are used then.
"""

import ctypes
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lopa.runtime.cpu_kernels.operator_library import (
    FALLBACK,
    OperatorLibrary,
    SessionOptions,
    library_path,
    status_of_missing,
)
from lopa.runtime.errors import raise_if_from_handler

DOMAIN = "lopa.cpu"
"""Domain of the operators in graphs (operators.cpp)."""
BLOCK = 32
"""Inputs that share a scale in an int4 matrix of these operators."""
_THREADS_ENTRY = "lopa.cpu.threads"
"""Entry of the session's options with its number of threads (operators.cpp). ONNX Runtime does not tell operators."""
_MACHINES = ("x86_64", "AMD64")
"""Names of x86-64 in platform.machine()."""


@dataclass(frozen=True)
class KernelLibrary(OperatorLibrary):
    """The library, loaded into this process."""

    functions: ctypes.CDLL

    @property
    def instruction_set(self) -> str | None:
        """Name of the instruction set in use, or None if the processor has none that the kernels need."""
        name: bytes | None = self.functions.lopa_instruction_set()
        return None if name is None else name.decode()

    def add_operators(self, options: SessionOptions) -> None:
        """Make the operators known to sessions with `options`, whose number of threads is set before."""
        options.add_session_config_entry(_THREADS_ENTRY, str(options.intra_op_num_threads))
        super().add_operators(options)

    def select(self, instruction_set: str) -> None:
        """Use another instruction set in this process, for tests. The processor must have it. Raises ValueError for
        an unknown name.
        """
        if not self.functions.lopa_select_instruction_set(instruction_set.encode()):
            raise ValueError(f"received {instruction_set!r}, expected avx512-vnni, avx-vnni or avx2")


@cache
def kernel_library() -> KernelLibrary | None:
    """Return the library, or None if it is not installed or cannot run on this processor."""
    try:
        library = _loaded_library()
    except OSError as error:
        raise_if_from_handler(error)
        return None
    return library if library is not None and library.instruction_set is not None else None


def kernel_status() -> str:
    """Return the instruction set that the kernels use, or why they are not used and what to do, for users."""
    try:
        library = _loaded_library()
    except OSError as error:
        return f"cannot be loaded ({error}){FALLBACK}. Reinstall lopa-export"
    if library is not None:
        return library.instruction_set or f"not used, because this processor has no AVX2{FALLBACK}"
    if platform.machine() not in _MACHINES:
        return f"not available for {platform.machine()}{FALLBACK}"
    return status_of_missing(Path(__file__).parent)


def _loaded_library() -> KernelLibrary | None:
    """Return the library, or None if it is not installed. Raises OSError if this system cannot load it."""
    path = library_path(Path(__file__).parent, "_kernels")
    if path is None:
        return None
    functions = ctypes.CDLL(str(path))
    functions.lopa_instruction_set.restype = ctypes.c_char_p
    return KernelLibrary(path, functions)
