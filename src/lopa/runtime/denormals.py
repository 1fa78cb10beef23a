"""Treat denormal numbers (below 1.2e-38 in float32) as zero on the current thread.

Intel's processors take some hundred cycles for a product with a denormal number. A softmax makes many of them: most
attention weights of a trained model are that small. The difference is too small to show in an answer. Two bits of a
thread's state control this on x86-64. It is implemented for Linux; on other systems nothing changes.
"""

import ctypes
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ENVIRONMENT_BYTES = 32
"""Size of fenv_t of x86-64 in glibc and musl: the x87 state, then MXCSR as its last four bytes."""
_MXCSR = 28
_FLUSHED_RESULTS, _ZEROED_OPERANDS = 0x8000, 0x0040
"""Bits of MXCSR: flush-to-zero and denormals-are-zero (Intel's manual, volume 1, section 10.2.3)."""


def can_change() -> bool:
    """Return True if `denormals_as_zero` has an effect on this machine."""
    return _libc is not None


@contextmanager
def denormals_as_zero() -> Iterator[None]:
    """Treat denormal numbers as zero on this thread within the context, then restore its state."""
    if _libc is None:
        yield
        return
    before = ctypes.create_string_buffer(_ENVIRONMENT_BYTES)
    _libc.fegetenv(before)
    bits = ctypes.c_uint32.from_buffer_copy(before, _MXCSR).value | _FLUSHED_RESULTS | _ZEROED_OPERANDS
    try:
        _libc.fesetenv(before.raw[:_MXCSR] + bits.to_bytes(_ENVIRONMENT_BYTES - _MXCSR, "little"))
        yield
    finally:
        _libc.fesetenv(before)


def _libc_with_environments() -> ctypes.CDLL | None:
    if sys.platform != "linux" or platform.machine() != "x86_64" or sys.maxsize < 2**32:
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "fegetenv") and hasattr(library, "fesetenv") else None


_libc = _libc_with_environments()
