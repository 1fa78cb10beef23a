"""Page-locked memory of the host, through which copies to and from a device go: only then are they asynchronous.

A few blocks that are used again once the device was waited for. Knows no vendor: `allocate` is theirs.
"""

import ctypes
from collections.abc import Callable

from lopa.runtime.accelerator.memory import Array

_BLOCK = 1 << 20
"""Bytes at a time, at least."""
_ALIGNMENT = 64
"""Bytes. Every piece begins at a multiple: what Ascend's asynchronous copies want."""


class PageLocked:
    """Pieces of memory that nothing else uses until `give_back`."""

    def __init__(self, allocate: Callable[[int], int]) -> None:
        """`allocate` gives the address of so many bytes, a multiple of the alignment."""
        self._allocate = allocate
        self._blocks: list[tuple[int, int]] = []
        """Address and size."""
        self._block = 0
        """The one that is being filled."""
        self._filled = 0
        self._arriving: list[tuple[Array, int]] = []
        """Arrays to fill, and the pieces in which their contents arrive."""

    @property
    def addresses(self) -> list[int]:
        """Of all blocks."""
        return [address for address, _ in self._blocks]

    def copy_of(self, source: Array) -> int:
        """The address of a piece with the contents of a C-contiguous array, which may be changed at once."""
        piece = self.take(source.nbytes)
        ctypes.memmove(piece, source.ctypes.data, source.nbytes)
        return piece

    def piece_for(self, target: Array) -> int:
        """The address of a piece from which the next `arrivals` fill a C-contiguous array."""
        piece = self.take(target.nbytes)
        self._arriving.append((target, piece))
        return piece

    def arrivals(self) -> Callable[[], None]:
        """What to do once the device was waited for: fills the arrays so far and gives all pieces back."""
        arriving, self._arriving = self._arriving, []

        def arrived() -> None:
            for target, piece in arriving:
                ctypes.memmove(target.ctypes.data, piece, target.nbytes)
            self.give_back()

        return arrived

    def take(self, size: int) -> int:
        """The address of a piece of `size` bytes."""
        while self._block < len(self._blocks) and self._filled + size > self._blocks[self._block][1]:
            self._block, self._filled = self._block + 1, 0
        if self._block == len(self._blocks):
            room = max(size, _BLOCK)
            self._blocks.append((self._allocate(room), room))
        address = self._blocks[self._block][0] + self._filled
        self._filled += -(-size // _ALIGNMENT) * _ALIGNMENT
        return address

    def give_back(self) -> None:
        """All pieces; the blocks stay."""
        self._block = self._filled = 0
