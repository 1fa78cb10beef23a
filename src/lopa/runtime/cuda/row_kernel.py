"""Rows of all layers copied by one launch on a CUDA device: the commit kernel of lopa.plugins in place of many copies.

Launches PTX through the driver (cuda-bindings). Triton compiles it when a session is opened; without Triton there is no
kernel, and rows are copied one array after another. Knows addresses and sizes only.
"""

import ctypes
import importlib
import logging
from typing import Any

from lopa.runtime.cuda.calls import CAPTURES
from lopa.runtime.cuda.driver import cuda_device, version_numbers
from lopa.runtime.errors import EngineFailedError
from lopa.runtime.sessions.prefix_cache import CacheShape

MODULE = "cuda.bindings.driver"
COMPILER = "lopa.plugins.kernels.compiled_operators"
_TYPES = (ctypes.c_void_p, *[ctypes.c_int] * 6)
"""Of commit_kernel: the table, window, slot, width, prefix, offset, count."""
_log = logging.getLogger(__name__)


class RowKernel:
    """The kernel, loaded on the device of the thread that made it."""

    def __init__(self, driver: Any, compiled: Any, shape: CacheShape) -> None:
        """`compiled`: a lopa.plugins.kernels.ahead_of_time.CompiledKernel. Raises EngineFailedError."""
        self._driver = driver
        self._threads, self._shared = compiled.threads, compiled.shared_bytes
        self._rows = compiled.rows
        self._heads = shape.kv_heads
        self.arrays = shape.arrays
        """As many are copied at once."""
        self.row_bytes = shape.head_size * shape.dtype.itemsize
        self._module = self._called("cuModuleLoadData", compiled.ptx.encode() + b"\0")
        self._function = self._called("cuModuleGetFunction", self._module, compiled.name.encode())

    def launch(self, stream: Any, table: int, width: int, prefix: int, count: int) -> None:
        """Put in the queue: for each pair of addresses in `table`, int64 [arrays, 2], `count` rows of every head.

        The first is a head's first row to read, the second where it goes; heads are `width` and `prefix` rows apart.
        """
        grid = (self.arrays, self._heads, -(-count // self._rows))
        block = (self._threads, 1, 1)
        values = (table, 0, 0, width, prefix, 0, count)
        self._called("cuLaunchKernel", self._function, *grid, *block, self._shared, int(stream), (values, _TYPES), 0)

    def close(self) -> None:
        """Unload it; it is not in the queue."""
        self._called("cuModuleUnload", self._module)

    def _called(self, name: str, *arguments: Any) -> Any:
        with CAPTURES.forbidden():
            code, *values = getattr(self._driver, name)(*arguments)
        if code != self._driver.CUresult.CUDA_SUCCESS:
            raise EngineFailedError(
                f"{name} of the commit kernel returned {code.name}",
                expected="CUDA_SUCCESS",
                remedy="open the device again; if it fails again, export the checkpoint without --plugins",
            )
        return values[0] if values else None


def row_kernel_from_plugins(device: int, shape: CacheShape) -> RowKernel | None:
    """Compile and load the kernel for this device, which is the thread's; None without Triton.

    Raises EngineFailedError when the driver does not take it.
    """
    try:
        compiler = importlib.import_module(COMPILER)
    except ImportError as error:
        _log.info("rows are copied one array after another, since the commit kernel cannot be compiled: %s", error)
        return None
    major, minor = version_numbers(cuda_device(device).capability)
    floats = "fp32" if shape.dtype.itemsize == 4 else "fp16"  # rows are copied as bits
    compiled = compiler.compiled_commit(floats, shape.kv_heads, shape.head_size, (major, minor))
    return RowKernel(importlib.import_module(MODULE), compiled, shape)
