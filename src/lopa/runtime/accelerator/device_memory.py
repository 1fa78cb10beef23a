"""Memory of one device, with the stream that orders all work on it.

A vendor's adapter implements the DeviceMemory protocol. The helpers here are shared: several arrays in one allocation,
and copies of key and value rows.

Copies to and from a device are asynchronous only with pinned host memory. A few blocks of it are kept and reused after
synchronization. The vendor's adapter passes `allocate`.
"""

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ALIGNMENT = 512
"""Alignment of arrays in a BufferSet, in bytes. It satisfies all devices (CUDA 256, Ascend 64)."""


class DeviceMemory(Protocol):
    """Memory of a device. Addresses are integers of the memory's own address space, sizes are bytes.

    An address is the start of an allocation plus an offset. On CUDA and Ascend it is the device's own address. A memory
    whose allocations have handles numbers them instead.

    All calls but `allocate` and `free` only enqueue work on the stream, in order with the forwards. `synchronize` waits
    for it. It is not thread-safe.
    """

    packs_arrays: bool
    """True if engines accept an array anywhere in an allocation. If False, only at its start."""

    def allocate(self, size: int) -> int:
        """Return the address of uninitialized memory, a multiple of ALIGNMENT. Raises MemoryError if memory is full."""

    def free(self, address: int) -> None:
        """Free memory from `allocate`. No queued work may still use it."""

    def upload(self, target: int, source: Array) -> None:
        """Copy a C-contiguous host array to the device. The caller may change the array immediately."""

    def download(self, target: Array, source: int) -> None:
        """Fill a C-contiguous host array. It is valid after `synchronize`."""

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """Copy `count` pieces of `size` bytes each, at fixed distances. No source overlaps a target."""

    def fill_zero(self, target: int, size: int) -> None:
        """Fill memory with zeros."""

    def synchronize(self) -> None:
        """Wait for all queued work. Raises its errors."""

    def close(self) -> None:
        """Free the stream and all remaining memory."""


@dataclass(frozen=True)
class Buffer:
    """A piece of device memory."""

    address: int
    size: int


class BufferSet:
    """Several arrays, joined in one allocation, which is cheaper, or in one allocation each."""

    def __init__(self, memory: DeviceMemory, sizes: Sequence[int], *, is_joined: bool = True) -> None:
        padded = [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]
        self._memory = memory
        self._allocated = [Buffer(memory.allocate(size), size) for size in ([sum(padded)] if is_joined else padded)]
        starts = [each.address for each in self._allocated]
        self.buffers = tuple(map(Buffer, accumulate(padded, initial=starts[0]) if is_joined else starts, sizes))

    @property
    def whole(self) -> Buffer:
        """All arrays as one buffer. Raises ValueError if alignment leaves gaps between them."""
        if any(each.size % ALIGNMENT for each in self.buffers[:-1]):
            raise ValueError(f"received arrays of {self.buffers[0].size} bytes, expected a multiple of {ALIGNMENT}")
        (whole,) = self._allocated
        return whole

    def fill_zero(self) -> None:
        """Fill all arrays with zeros."""
        for each in self._allocated:
            self._memory.fill_zero(each.address, each.size)

    def free(self) -> None:
        """Free the arrays after waiting for the stream, which may still use them."""
        self._memory.synchronize()
        for each in self._allocated:
            self._memory.free(each.address)


class GrowingBuffers:
    """Named arrays in one allocation, or in one allocation each. They are replaced when an array must grow."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._set: BufferSet | None = None
        self._buffers: dict[str, Buffer] = {}

    def buffers(self, sizes: Mapping[str, int]) -> dict[str, Buffer]:
        """Return at least the requested bytes per name. Addresses stay unless an array must grow; then all change."""
        current = {name: buffer.size for name, buffer in self._buffers.items()}
        if any(size > current.get(name, 0) for name, size in sizes.items()):
            self.free()
            required = current | {name: max(size, current.get(name, 0)) for name, size in sizes.items()}
            self._set = BufferSet(self._memory, [*required.values()], is_joined=self._memory.packs_arrays)
            self._buffers = dict(zip(required, self._set.buffers, strict=True))
        return self._buffers

    def free(self) -> None:
        """Free the memory, like BufferSet.free."""
        if self._set is not None:
            self._set.free()
        self._set, self._buffers = None, {}


@dataclass(frozen=True)
class RowPlace:
    """Location of key and value rows of several heads, in each of several arrays. A head's rows are contiguous."""

    addresses: tuple[int, ...]
    """Address of the first head's first row, per array in the order of contract.past_names."""
    head_step: int
    """Bytes between the first rows of consecutive heads."""


@runtime_checkable
class RowCopier(Protocol):
    """Memory that can copy the rows of all arrays with one call."""

    def copy_rows_at_once(self, target: RowPlace, source: RowPlace, size: int, heads: int) -> bool:
        """Copy rows like copy_rows. Return False if nothing was copied."""


def copy_rows(memory: DeviceMemory, target: RowPlace, source: RowPlace, size: int, heads: int) -> None:
    """Copy `size` bytes of rows of every head in every array."""
    if size == 0 or (isinstance(memory, RowCopier) and memory.copy_rows_at_once(target, source, size, heads)):
        return
    for to, start in zip(target.addresses, source.addresses, strict=True):
        memory.copy_pieces(to, target.head_step, start, source.head_step, size, heads)


def fill_rows_zero(memory: DeviceMemory, target: RowPlace, size: int, heads: int) -> None:
    """Fill `size` bytes of rows of every head in every array with zeros."""
    for start in target.addresses if size else ():
        for head in range(heads):
            memory.fill_zero(start + head * target.head_step, size)


def download_rows(memory: DeviceMemory, targets: Sequence[Array], source: RowPlace) -> None:
    """Fill host arrays [Hkv, rows, D]. They are valid after `synchronize`."""
    for array, start in zip(targets, source.addresses, strict=True):
        for head, rows in enumerate(array):
            if rows.size:
                memory.download(rows, start + head * source.head_step)


def upload_rows(memory: DeviceMemory, target: RowPlace, sources: Sequence[Array]) -> None:
    """Copy host arrays [Hkv, rows, D] to the device."""
    for array, start in zip(sources, target.addresses, strict=True):
        for head, rows in enumerate(array):
            if rows.size:
                memory.upload(start + head * target.head_step, np.ascontiguousarray(rows))


def run_all(steps: Iterable[Callable[[], object]]) -> None:
    """Run every step even if others fail, e.g. to free several resources. Raises the first failure at the end."""
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]


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
