"""The memory of stand-ins for devices: host memory by made-up addresses, and no access to what is not allocated."""

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np


class ViolationError(AssertionError):
    """Something that the contract of a library forbids."""


@dataclass
class Block:
    """One allocation."""

    data: np.ndarray
    owner: Any
    """Whose it is, as the stand-in says; None: page-locked memory of the host."""
    keep: Any = None

    @property
    def size(self) -> int:
        return self.data.size


class HostBlocks(dict[int, Block]):
    """By their addresses. What breaks a rule raises ViolationError and is kept in `violations`."""

    def __init__(self, violations: list[str] | None = None) -> None:
        super().__init__()
        self.violations = [] if violations is None else violations

    def require(self, held: bool, rule: str) -> None:
        if not held:
            self.violations.append(rule)
            raise ViolationError(rule)

    def add(self, address: int, size: int, owner: Any) -> None:
        """All bits set are NaN in every float type: a number that was never written shows wherever it is read."""
        self[address] = Block(np.full(size, 0xFF, np.uint8), owner)

    def add_page_locked(self, size: int, alignment: int) -> int:
        """At an address that leads there, also for those who know nothing of this class."""
        raw = ctypes.create_string_buffer(size + alignment)
        address = -(-ctypes.addressof(raw) // alignment) * alignment
        data = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        data[:] = 0xFF
        self[address] = Block(data, None, keep=raw)
        return address

    def holding(self, address: int, size: int) -> Block:
        """The block with all of these bytes."""
        return self[self._start(address, size)]

    def view(self, address: int, size: int) -> np.ndarray:
        """The bytes there."""
        start = self._start(address, size)
        return self[start].data[address - start : address - start + size]

    def copy(self, target: int, source: int, size: int) -> None:
        self.view(target, size)[:] = self.view(source, size)

    def total(self, is_counted: Callable[[Any], bool]) -> int:
        """Bytes of those whose owner is counted."""
        return sum(block.size for block in self.values() if is_counted(block.owner))

    def remove(self, address: int, queued: Iterable[int]) -> None:
        """Free a block, at none of whose addresses anything in a queue works."""
        end = address + self[address].size
        used = any(address <= each < end for each in queued)
        self.require(not used, "memory freed that a stream will use")
        del self[address]

    def _start(self, address: int, size: int) -> int:
        start = max((each for each in self if each <= address), default=None)
        if start is None or address + size > start + self[start].size:
            self.require(False, f"{size} bytes at {address} are not all allocated")
        assert start is not None
        return start
