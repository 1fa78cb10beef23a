"""Memory of one device and the stream on which everything happens there. Knows no vendor, no forward and no request.

What a vendor's adapter offers is the Protocol; the rest are the few things that all of them share: many arrays in one
allocation, and rows of key and value arrays copied from place to place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ALIGNMENT = 512
"""Bytes. Every array of a BufferSet begins at a multiple: as much as any device asks for (CUDA 256, Ascend 64)."""


class DeviceMemory(Protocol):
    """Addresses are numbers, sizes are bytes.

    All but `allocate` and `free` is only put in the stream's queue, in order with the forwards; `synchronize`
    waits for it. One thread at a time.
    """

    def allocate(self, size: int) -> int:
        """The address of memory with anything in it, a multiple of ALIGNMENT. Raises MemoryError when full."""

    def free(self, address: int) -> None:
        """Give back what `allocate` gave. Nothing in the queue may still use it."""

    def upload(self, target: int, source: Array) -> None:
        """Copy a C-contiguous array of the host to the device; the caller may change it at once."""

    def download(self, target: Array, source: int) -> None:
        """Fill a C-contiguous array of the host; it has its contents after `synchronize`."""

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """Copy `count` pieces of `size` bytes, each so many bytes behind the one before; none overlaps a target.

        `source` may be memory of another device that `reach` said yes to.
        """

    def fill_zero(self, target: int, size: int) -> None:
        """Write zeros."""

    def synchronize(self) -> None:
        """Wait for everything in the queue. Raises what went wrong there."""

    def reach(self, peer: "DeviceMemory") -> bool:
        """Prepare copies between this device and `peer`; whether they are possible.

        Both sides have to be asked, and best before the memory is allocated that is copied from or to.
        """

    def close(self) -> None:
        """Free the stream, and whatever was not freed before."""


@dataclass(frozen=True)
class Buffer:
    """Some memory of a device."""

    address: int
    size: int


class BufferSet:
    """Several arrays in one allocation, which costs less than one each."""

    def __init__(self, memory: DeviceMemory, sizes: Sequence[int]) -> None:
        padded = (-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
        starts = list(accumulate(padded, initial=0))
        self._memory = memory
        self._size = starts[-1]
        self._address = memory.allocate(self._size)
        self.buffers = tuple(
            Buffer(self._address + start, size) for start, size in zip(starts[:-1], sizes, strict=True)
        )

    @property
    def whole(self) -> Buffer:
        """All of them as one array, in order. Raises ValueError where their alignment leaves holes between them."""
        if any(each.size % ALIGNMENT for each in self.buffers[:-1]):
            raise ValueError(f"received arrays of {self.buffers[0].size} bytes, expected a multiple of {ALIGNMENT}")
        return Buffer(self._address, self._size)

    def fill_zero(self) -> None:
        """Write zeros into all of them."""
        self._memory.fill_zero(self._address, self._size)

    def free(self) -> None:
        """Waits for the stream, which may still use them."""
        self._memory.synchronize()
        self._memory.free(self._address)


class GrowingBuffers:
    """Arrays by name in one allocation, which is made again when one of them has to be larger than ever before."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self._set: BufferSet | None = None
        self._buffers: dict[str, Buffer] = {}

    def buffers(self, sizes: Mapping[str, int]) -> dict[str, Buffer]:
        """At least so many bytes for each name, where they were if they had as many; otherwise all in a new place."""
        had = {name: buffer.size for name, buffer in self._buffers.items()}
        if any(size > had.get(name, 0) for name, size in sizes.items()):
            self.free()
            upper = had | {name: max(size, had.get(name, 0)) for name, size in sizes.items()}
            self._set = BufferSet(self._memory, list(upper.values()))
            self._buffers = dict(zip(upper, self._set.buffers, strict=True))
        return self._buffers

    def free(self) -> None:
        """Give the memory back, as BufferSet.free."""
        if self._set is not None:
            self._set.free()
        self._set, self._buffers = None, {}


@dataclass(frozen=True)
class RowPlace:
    """Where key and value rows of some heads lie: a head's rows one behind the other, in each of several arrays."""

    addresses: tuple[int, ...]
    """Of the first head's first row, in the order of contract.past_names."""
    head_step: int
    """Bytes from a head's first row to the next head's."""


@runtime_checkable
class RowCopier(Protocol):
    """A memory that may copy the rows of all arrays at once."""

    def copy_rows_at_once(self, target: RowPlace, source: RowPlace, size: int) -> bool:
        """As copy_rows, of all heads of a cache; whether it was done."""


def copy_rows(memory: DeviceMemory, target: RowPlace, source: RowPlace, size: int, heads: int) -> None:
    """Copy `size` bytes of rows of every head in every array."""
    if size == 0 or (isinstance(memory, RowCopier) and memory.copy_rows_at_once(target, source, size)):
        return
    for to, start in zip(target.addresses, source.addresses, strict=True):
        memory.copy_pieces(to, target.head_step, start, source.head_step, size, heads)


def fill_rows_zero(memory: DeviceMemory, target: RowPlace, size: int, heads: int) -> None:
    """Write zeros into `size` bytes of rows of every head in every array."""
    for start in target.addresses if size else ():
        for head in range(heads):
            memory.fill_zero(start + head * target.head_step, size)


def download_rows(memory: DeviceMemory, targets: Sequence[Array], source: RowPlace) -> None:
    """Fill arrays [Hkv, rows, D] of the host; they have their contents after `synchronize`."""
    for array, start in zip(targets, source.addresses, strict=True):
        for head, rows in enumerate(array):
            if rows.size:
                memory.download(rows, start + head * source.head_step)


def upload_rows(memory: DeviceMemory, target: RowPlace, sources: Sequence[Array]) -> None:
    """Copy arrays [Hkv, rows, D] of the host to the device."""
    for array, start in zip(sources, target.addresses, strict=True):
        for head, rows in enumerate(array):
            if rows.size:
                memory.upload(start + head * target.head_step, np.ascontiguousarray(rows))


def take_all(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step whatever the others do, e.g. free one thing after another; raise the first failure at the end."""
    failures: list[Exception] = []
    for step in steps:
        try:
            step()
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
