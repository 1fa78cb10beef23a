"""Pinned host memory, without which copies to and from a device are not asynchronous.

A few blocks are kept and reused after synchronization. The vendor's adapter passes `allocate`.
"""

import ctypes
from collections.abc import Callable

from lopa.runtime.accelerator.device_memory import Array

_BLOCK = 1 << 20
"""Minimum size of a block, in bytes."""
_ALIGNMENT = 64
"""Alignment of every piece, in bytes, as required by Ascend's asynchronous copies."""


class PinnedMemory:
    """Pieces of pinned memory that stay reserved until `release_pieces`."""

    def __init__(self, allocate: Callable[[int], int]) -> None:
        """Create an empty pool. `allocate` returns the aligned address of a number of bytes."""
        self._allocate = allocate
        self._blocks: list[tuple[int, int]] = []
        """Address and size of each block."""
        self._block = 0
        """Index of the block that is being filled."""
        self._filled = 0
        self._arriving: list[tuple[Array, int]] = []
        """Target arrays and the pieces that receive their contents."""

    @property
    def addresses(self) -> list[int]:
        """Addresses of all blocks."""
        return [address for address, _ in self._blocks]

    def staged_copy(self, source: Array) -> int:
        """Return the address of a copy of a C-contiguous array. The caller may change the array immediately."""
        piece = self.take(source.nbytes)
        ctypes.memmove(piece, source.ctypes.data, source.nbytes)
        return piece

    def piece_for(self, target: Array) -> int:
        """Return the address of a piece of a block. The function from the next `arrivals` copies its content to the
        C-contiguous array `target`.
        """
        piece = self.take(target.nbytes)
        self._arriving.append((target, piece))
        return piece

    def arrivals(self) -> Callable[[], None]:
        """Return a function to call after synchronization. It fills the arrays registered so far and frees all
        pieces.
        """
        arriving, self._arriving = self._arriving, []

        def finish() -> None:
            for target, piece in arriving:
                ctypes.memmove(target.ctypes.data, piece, target.nbytes)
            self.release_pieces()

        return finish

    def take(self, size: int) -> int:
        """Return the address of a piece of `size` bytes."""
        while self._block < len(self._blocks) and self._filled + size > self._blocks[self._block][1]:
            self._block, self._filled = self._block + 1, 0
        if self._block == len(self._blocks):
            block_size = max(size, _BLOCK)
            self._blocks.append((self._allocate(block_size), block_size))
        address = self._blocks[self._block][0] + self._filled
        self._filled += -(-size // _ALIGNMENT) * _ALIGNMENT
        return address

    def release_pieces(self) -> None:
        """Free all pieces, but keep the blocks."""
        self._block = self._filled = 0
