"""Numbers below the least normal one (1.2e-38 in float32) taken for zero by the processor, on the thread that asks.

Intel's processors take some hundred cycles for a product with such a number, and a softmax makes many: attention in a
trained model has most of its weights there. No answer can show the difference. Knows x86-64 on Linux, where the state
of a thread has it as two bits; elsewhere nothing is changed.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ENVIRONMENT_BYTES = 32
"""fenv_t of x86-64 in glibc and musl: the state of the x87, then MXCSR as its last four bytes."""
_MXCSR = 28
_FLUSHED_RESULTS, _ZEROED_OPERANDS = 0x8000, 0x0040
"""Bits of MXCSR (Intel's manual, volume 1, section 10.2.3)."""


def can_change() -> bool:
    """Whether `denormals_as_zero` does anything here."""
    return _libc is not None


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """This thread takes denormal numbers for zero while the context lasts; then its state is as it was."""
    if _libc is None:
        yield
        return
    before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _libc.fegetenv(before)
    bits = ctypes.c_uint32.from_buffer_copy(before, _MXCSR).value | _FLUSHED_RESULTS | _ZEROED_OPERANDS
    _libc.fesetenv(before.raw[:_MXCSR] + bits.to_bytes(_ENVIRONMENT_BYTES - _MXCSR, "little"))
    try:
        yield
    finally:
        _libc.fesetenv(before)


def _libc_with_environments() -> ctypes.CDLL | None:
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "fegetenv") and hasattr(library, "fesetenv") else None


_libc = _libc_with_environments()
