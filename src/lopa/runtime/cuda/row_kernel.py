"""Copy the rows of all layers with one launch on a CUDA device, using the commit kernel of lopa.plugins.

This module launches PTX through the driver (cuda-bindings). Triton compiles it when a session opens. Without Triton,
rows are copied one array at a time.
"""

import ctypes
import importlib
import logging
from typing import Any

from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda.driver import cuda_device, version_numbers
from lopa.runtime.errors import EngineFailedError
from lopa.runtime.sessions.prefix_cache import CacheShape

MODULE = "cuda.bindings.driver"
COMPILER = "lopa.plugins.kernels.ahead_of_time"
VARIANTS = "lopa.plugins.kernels.variants"
_TYPES = (ctypes.c_void_p, *[ctypes.c_int] * 8, ctypes.c_void_p, ctypes.c_void_p)
"""Argument types of commit_kernel: table, window, slot, width, prefix, offset, count, heads, words, two pointers."""
_log = logging.getLogger(__name__)


class RowKernel:
    """The commit kernel, loaded on the current thread's device."""

    def __init__(self, driver: Any, compiled: Any, rows: int, word: int, shape: CacheShape) -> None:
        """Load `compiled`, a lopa.plugins.kernels.ahead_of_time.CompiledKernel, which copies words of `word` bytes.

        A program copies `rows` rows. Raises EngineFailedError on failure.
        """
        self._driver = driver
        self._threads, self._shared = compiled.threads, compiled.shared
        self._rows, self._word = rows, word
        self._heads = shape.kv_heads
        self.arrays = shape.arrays
        """Number of arrays copied per launch."""
        self.row_bytes = shape.head_size * shape.dtype.itemsize
        self._module = self._call("cuModuleLoadData", compiled.ptx.encode() + b"\0")
        self._function = self._call("cuModuleGetFunction", self._module, compiled.entry.encode())

    def launch(self, stream: Any, table: int, width: int, prefix: int, count: int) -> None:
        """Enqueue copies of `count` rows of every head, for each pair of addresses in `table`, int64 [arrays, 2].

        The first address is the first row to read, the second the first row to write. Heads are `width` and `prefix`
        rows apart.
        """
        grid = (self.arrays, self._heads, -(-count // self._rows))
        block = (self._threads, 1, 1)
        words = self.row_bytes // self._word
        values = (table, 0, 0, width, prefix, 0, count, self._heads, words, None, None)
        self._call("cuLaunchKernel", self._function, *grid, *block, self._shared, int(stream), (values, _TYPES), 0)

    def close(self) -> None:
        """Unload the kernel. It must not be queued."""
        self._call("cuModuleUnload", self._module)

    def _call(self, name: str, *arguments: Any) -> Any:
        with CAPTURE_LOCK.shared():
            code, *values = getattr(self._driver, name)(*arguments)
        if code != self._driver.CUresult.CUDA_SUCCESS:
            raise EngineFailedError(
                f"{name} of the commit kernel returned {code.name}",
                expected="CUDA_SUCCESS",
                remedy="open the device again; if it fails again, export the checkpoint without --plugins",
            )
        return values[0] if values else None


def row_kernel_from_plugins(device: int, shape: CacheShape) -> RowKernel | None:
    """Compile and load the kernel for `device`, the current thread's device, or return None without Triton.

    Raises EngineFailedError if the driver rejects the kernel.
    """
    try:
        compiler = importlib.import_module(COMPILER)
    except ImportError as error:
        _log.info("copying rows one array at a time, because the commit kernel cannot be compiled: %s", error)
        return None
    major, minor = version_numbers(cuda_device(device).capability)
    target = 10 * major + minor
    word = next(word for word in (8, 4, 2) if shape.head_size * shape.dtype.itemsize % word == 0)
    variant = importlib.import_module(VARIANTS).variants(target)[f"commit.{word}"]
    compiled = compiler.compiled_variant(variant, target)
    return RowKernel(importlib.import_module(MODULE), compiled, variant.constants["ROWS"], word, shape)
