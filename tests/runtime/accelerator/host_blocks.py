"""Memory of device stand-ins: host memory at fake or real addresses, with checked access."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


class ViolationError(AssertionError):
    """A violation of a library's contract."""


@dataclass
class Block:
    """One allocation."""

    data: np.ndarray
    owner: Any
    """Owner as given by the stand-in. None is pinned host memory."""
    keep: Any = None

    @property
    def size(self) -> int:
        return self.data.size


class HostBlocks(dict[int, Block]):
    """Blocks by address. A broken rule raises ViolationError and is recorded in `violations`."""

    def __init__(self, violations: list[str] | None = None) -> None:
        super().__init__()
        self.violations = [] if violations is None else violations

    def require(self, condition: bool, rule: str) -> None:
        if not condition:
            self.violations.append(rule)
            raise ViolationError(rule)

    def add(self, address: int, size: int, owner: Any) -> None:
        """Add a block filled with set bits, which are NaN in every float type. Reads of unwritten memory thus show."""
        self[address] = Block(np.full(size, 0xFF, np.uint8), owner)

    def add_real(self, size: int, alignment: int, owner: Any) -> int:
        """Add a block like `add` at a real address, so that code outside this class can use it: an odd multiple of the
        alignment."""
        raw = ctypes.create_string_buffer(size + 3 * alignment)
        address = (-(-ctypes.addressof(raw) // alignment) | 1) * alignment
        data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        data[:] = 0xFF
        self[address] = Block(data, owner, keep=raw)
        return address

    def holding(self, address: int, size: int) -> Block:
        """Return the block that contains all of these bytes."""
        return self[self._start(address, size)]

    def view(self, address: int, size: int) -> np.ndarray:
        """Return a view of the bytes."""
        start = self._start(address, size)
        return self[start].data[address - start : address - start + size]

    def copy_bytes(self, target: int, source: int, size: int) -> None:
        self.view(target, size)[:] = self.view(source, size)

    def total(self, is_counted: Callable[[Any], bool]) -> int:
        """Return the total bytes of the blocks for whose owner `is_counted` returns True."""
        return sum(block.size for block in list(self.values()) if is_counted(block.owner))

    def remove(self, address: int, queued: Iterable[int]) -> None:
        """Free a block. No queued work may use its addresses."""
        end = address + self[address].size
        used = any(address <= each < end for each in queued)
        self.require(not used, "memory freed that a stream will use")
        del self[address]

    def _start(self, address: int, size: int) -> int:
        # A copy, since another thread may add blocks meanwhile.
        start = max((each for each in list(self) if each <= address), default=None)
        if start is None or address + size > start + self[start].size:
            self.require(False, f"{size} bytes at {address} are not all allocated")
        assert start is not None
        return start
