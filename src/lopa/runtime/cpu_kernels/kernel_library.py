"""The compiled library of the operators, if this installation has it and the processor can run it.

The library is an optional extension module. Without a C++ compiler, or on a processor other than x86-64, the package
installs without it. ONNX Runtime's own kernels are used then.
"""

import ctypes
from dataclasses import dataclass
from functools import cache
from pathlib import Path

DOMAIN = "lopa.cpu"
"""Domain of the operators in graphs (operators.cpp)."""
BLOCK = 32
"""Inputs that share a scale in an int4 matrix of these operators."""
_PATTERN = "_kernels.*so"


@dataclass(frozen=True)
class KernelLibrary:
    """The library, loaded into this process."""

    path: Path
    """File for SessionOptions.register_custom_ops_library."""
    functions: ctypes.CDLL

    @property
    def instruction_set(self) -> str | None:
        """Name of the instruction set in use, or None if the processor has none that the kernels need."""
        name: bytes | None = self.functions.lopa_instruction_set()
        return None if name is None else name.decode()

    def select(self, instruction_set: str) -> None:
        """Use another instruction set in this process, for tests. The processor must have it. Raises ValueError for
        an unknown name.
        """
        if not self.functions.lopa_select_instruction_set(instruction_set.encode()):
            raise ValueError(f"received {instruction_set!r}, expected avx512-vnni, avx-vnni or avx2")


@cache
def kernel_library() -> KernelLibrary | None:
    """Return the library, or None if it is not installed or cannot run on this processor."""
    path = next(iter(sorted(Path(__file__).parent.glob(_PATTERN))), None)
    if path is None:
        return None
    try:
        functions = ctypes.CDLL(str(path))
    except OSError:  # built for another system
        return None
    functions.lopa_instruction_set.restype = ctypes.c_char_p
    library = KernelLibrary(path, functions)
    return library if library.instruction_set is not None else None
