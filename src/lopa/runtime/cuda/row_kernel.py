"""Copy the rows of all layers with one launch on a CUDA device, using the commit kernel of lopa.plugins."""

import ctypes

from lopa.runtime.cuda.cuda_calls import CAPTURE_LOCK
from lopa.runtime.cuda_kernels.cuda_library import CudaLibrary
from lopa.runtime.cuda_kernels.kernel_archive import COMMIT_ROWS
from lopa.runtime.sessions.prefix_cache import CacheShape

_WORD_BYTES = (8, 4, 2)


class RowKernel:
    """The commit kernel of the current thread's device."""

    def __init__(self, library: CudaLibrary, shape: CacheShape) -> None:
        """Use the kernels that `library` has loaded for the device."""
        self._library = library
        self._heads = shape.kv_heads
        self.arrays = shape.arrays
        """Number of arrays copied per launch."""
        self.row_bytes = shape.head_size * shape.dtype.itemsize
        self._word = next(size for size in _WORD_BYTES if self.row_bytes % size == 0)

    def launch(self, stream: int, table: int, width: int, prefix: int, count: int) -> None:
        """Enqueue copies of `count` rows of every head, for each pair of addresses in `table`, int64 [arrays, 2].

        The first address is the first row to read, the second the first row to write. Heads are `width` and `prefix`
        rows apart.
        """
        grid = (self.arrays, self._heads, -(-count // COMMIT_ROWS))
        numbers = (0, 0, width, prefix, 0, count, self._heads, self.row_bytes // self._word)
        with CAPTURE_LOCK.shared():
            self._library.launch(
                f"commit.{self._word}", grid, int(stream), ctypes.c_void_p(table), *map(ctypes.c_int, numbers)
            )
