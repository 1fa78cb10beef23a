"""Copy the rows of all layers with one launch on a CUDA device, using the commit kernel of lopa.plugins."""

import ctypes
from dataclasses import dataclass

from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary
from lopa.runtime.cuda_kernels.kernel_archive import COMMIT_ROWS
from lopa.runtime.sessions.prefix_cache import CacheShape

_WORD_BYTES = (8, 4, 2)


@dataclass(frozen=True)
class RowStrides:
    """Distances, in rows of one head, between the rows to copy."""

    array: int
    """Between arrays: the keys or values of a layer."""
    head: int
    row: int


class RowKernel:
    """The commit kernel of the current thread's device."""

    def __init__(self, library: CudaLibrary, shape: CacheShape) -> None:
        """Use the kernels that `library` has loaded for the device."""
        self._library = library
        self._heads = shape.kv_heads
        self._arrays = shape.arrays
        self._row_bytes = shape.head_size * shape.dtype.itemsize
        self._word = next(size for size in _WORD_BYTES if self._row_bytes % size == 0)

    def launch(self, stream: int, table: int, pieces: int, rows: int, source: RowStrides, target: RowStrides) -> None:
        """Enqueue copies of pieces of at most `rows` rows of every array and head.

        `table` is the address of int64 [pieces, 3] in device memory. A piece has the address of its first row to read
        and to write, for the first array and head, and its number of rows.
        """
        grid = (pieces, self._arrays * self._heads, -(-rows // COMMIT_ROWS))
        strides = [stride for each in (source, target) for stride in (each.array, each.head, each.row)]
        numbers = (self._heads, *strides, self._row_bytes // self._word)
        with CAPTURE_LOCK.shared():
            self._library.launch(
                f"commit.{self._word}", grid, int(stream), ctypes.c_void_p(table), *map(ctypes.c_int, numbers)
            )
