"""Memory of a WebGPU device through ONNX Runtime (DeviceMemory protocol).

WebGPU has no addresses. An allocation is a buffer with a handle, and an address here is its number times _DISTANCE plus
an offset. ONNX Runtime copies whole tensors only, so pieces are copied by small graphs.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import onnxruntime as ort

from lopa.runtime.accelerator.device_memory import Array, RowPlace
from lopa.runtime.graph_encoding import encoded_model, encoded_node, encoded_value
from lopa.runtime.sessions.onnxruntime_graph import quiet_run
from lopa.runtime.webgpu.webgpu_library import DEVICE, session_from_graph

_DISTANCE = 1 << 44
"""Distance between the addresses of allocations, larger than any allocation."""
_WORD = np.dtype(np.int32)
"""Type of all accesses. Integers are copied bit by bit, also where they hold two float16."""


@dataclass(frozen=True, eq=False)
class _Allocation:
    """A buffer on the device."""

    value: ort.OrtValue
    words: int

    @property
    def handle(self) -> int:
        return int(self.value.data_ptr())


@dataclass
class TransferCount:
    """Bytes copied between host and device so far, except at opening."""

    uploaded: int = 0
    downloaded: int = 0

    @property
    def total(self) -> int:
        """Bytes copied in both directions."""
        return self.uploaded + self.downloaded


class WebGpuMemory:
    """Memory of a WebGPU device."""

    packs_arrays = False  # an array is bound by its buffer's handle, without an offset

    def __init__(self, device: Any) -> None:
        """Compile the graphs that access pieces. `device` is an OrtEpDevice of the WebGPU plug-in."""
        self._info = device.memory_info(ort.OrtDeviceMemoryType.DEFAULT)
        self.place = DEVICE, self._info.device_id
        """Name and number of the memory, as IOBinding takes them."""
        self._allocations: dict[int, _Allocation] = {}
        self._next = 1
        self._read, self._write = (session_from_graph(graph(), device) for graph in (read_graph, write_graph))
        self._copy, self._clear = (session_from_graph(graph(), device) for graph in (copy_graph, clear_graph))
        self._options = quiet_run()
        self.transfers = TransferCount()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all allocations."""
        return sum(each.words for each in self._allocations.values()) * _WORD.itemsize

    def handle(self, address: int) -> int:
        """Return the handle of the buffer that starts at `address`. Raises ValueError for an address inside one."""
        allocation, offset = self._located(address)
        if offset:
            raise ValueError(f"received the address of byte {offset} of a buffer, expected its start")
        return allocation.handle

    def allocate(self, size: int) -> int:
        """Allocate a buffer. Its content is undefined."""
        words = -(-size // _WORD.itemsize)
        value = ort.OrtValue.ortvalue_from_shape_and_type([words], _WORD.type, memory_info=self._info)
        address, self._next = self._next * _DISTANCE, self._next + 1
        self._allocations[address] = _Allocation(value, words)
        return address

    def free(self, address: int) -> None:
        """Free a buffer."""
        del self._allocations[address]

    def upload(self, target: int, source: Array) -> None:
        """Copy a host array of whole words."""
        words = source.reshape(-1).view(_WORD)
        allocation, start, unit = self._piece(target, words.size)
        numbers = np.arange(start, start + words.size // unit)
        self._change(self._write, allocation, unit, {TO: numbers[:, None], ROWS: words.reshape(-1, unit)})

    def download(self, target: Array, source: int) -> None:
        """Fill a host array of whole words. It is valid at once."""
        words = target.reshape(-1).view(_WORD)
        allocation, start, unit = self._piece(source, words.size)
        self.transfers.downloaded += target.nbytes
        binding = self._read.io_binding()
        self._bind_table(binding, SOURCE, allocation, unit)
        binding.bind_cpu_input(FROM, np.arange(start, start + words.size // unit))
        binding.bind_output(ROWS, "cpu")
        self._read.run_with_iobinding(binding, self._options)
        words[:] = binding.copy_outputs_to_cpu()[0].reshape(-1)

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """Copy pieces at fixed distances, within this memory."""
        self.copy_rows_at_once(RowPlace((target,), target_step), RowPlace((source,), source_step), size, count)

    def copy_rows_at_once(self, target: RowPlace, source: RowPlace, size: int, heads: int) -> bool:
        """Copy rows of all heads with one graph run per pair of buffers."""
        offsets: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        """Offsets in bytes of target and source in each pair of buffers."""
        for pair in zip(target.addresses, source.addresses, strict=True):
            buffers, places = zip(*(divmod(address, _DISTANCE) for address in pair), strict=True)
            offsets[buffers].append(places)
        steps = (target.head_step, source.head_step) if heads > 1 else ()
        for (target_number, source_number), pairs in offsets.items():
            to, start = self._allocations[target_number * _DISTANCE], self._allocations[source_number * _DISTANCE]
            unit = math.gcd(to.words, start.words, *_in_words([size, *steps, *chain.from_iterable(pairs)]))
            targets, sources = zip(*pairs, strict=True)
            binding = self._copy.io_binding()
            self._bind_table(binding, SOURCE, start, unit)
            to_rows = _row_numbers(targets, target.head_step, size, heads, unit)
            from_rows = _row_numbers(sources, source.head_step, size, heads, unit)
            self._change(self._copy, to, unit, {FROM: from_rows, TO: to_rows[:, None]}, binding)
        return True

    def fill_zero(self, target: int, size: int) -> None:
        """Fill memory with zeros."""
        (words,) = _in_words([size])
        allocation, start, unit = self._piece(target, words)
        numbers = np.arange(start, start + words // unit)
        self._change(self._clear, allocation, unit, {FROM: numbers, TO: numbers[:, None]})

    def synchronize(self) -> None:
        """Do nothing. All work is in one queue in order, and every download waits for it."""

    def close(self) -> None:
        """Free all memory."""
        self._allocations.clear()

    def _located(self, address: int) -> tuple[_Allocation, int]:
        """Return an address's allocation, and its offset there in bytes."""
        number, offset = divmod(address, _DISTANCE)
        return self._allocations[number * _DISTANCE], offset

    def _piece(self, address: int, words: int) -> tuple[_Allocation, int, int]:
        """Return the allocation, first row and words a row of a piece of `words`, which are whole rows."""
        allocation, offset = self._located(address)
        (first,) = _in_words([offset])
        unit = math.gcd(allocation.words, first, words)
        return allocation, first // unit, unit

    def _change(
        self,
        session: ort.InferenceSession,
        target: _Allocation,
        unit: int,
        inputs: dict[str, Array],
        binding: Any = None,
    ) -> None:
        """Run a graph that changes `target` in place."""
        binding = session.io_binding() if binding is None else binding
        self._bind_table(binding, TARGET, target, unit)
        for name, array in inputs.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
            self.transfers.uploaded += array.nbytes
        shape = (target.words // unit, unit)
        binding.bind_output(CHANGED, *self.place, _WORD.type, shape, target.handle)
        session.run_with_iobinding(binding, self._options)

    def _bind_table(self, binding: Any, name: str, allocation: _Allocation, unit: int) -> None:
        shape = (allocation.words // unit, unit)
        binding.bind_input(name, *self.place, _WORD.type, shape, allocation.handle)


def _in_words(sizes: Iterable[int]) -> list[int]:
    """Return sizes in words. Raises ValueError for a size that is not a number of words."""
    sizes = list(sizes)
    if any(size % _WORD.itemsize for size in sizes):
        raise ValueError(f"received sizes of {sizes} bytes, expected multiples of {_WORD.itemsize}")
    return [size // _WORD.itemsize for size in sizes]


def _row_numbers(offsets: Sequence[int], step: int, size: int, count: int, unit: int) -> Array:
    """Return the rows of `unit` words of `count` pieces of `size` bytes, `step` bytes apart, behind each offset."""
    row = unit * _WORD.itemsize
    pieces = np.arange(count)[:, None] * (step // row) + np.arange(size // row)
    rows: Array = (np.array(offsets)[:, None] // row + pieces.reshape(-1)).reshape(-1)
    return rows


SOURCE, TARGET, ROWS, FROM, TO = "source", "target", "rows", "from", "to"
"""Tables, rows [K, U], and numbers of rows: `from` int64 [K] in the source, `to` int64 [K, 1] in the target."""
CHANGED = "changed"
"""Output of graphs that change `target`."""

_SOURCE = encoded_value(SOURCE, np.int32, ("M", "U"))
_TARGET = encoded_value(TARGET, np.int32, ("N", "U"))
_ROWS = encoded_value(ROWS, np.int32, ("K", "U"))
_FROM = encoded_value(FROM, np.int64, ("K",))
_TO = encoded_value(TO, np.int64, ("K", 1))
_CHANGED = encoded_value(CHANGED, np.int32, ("N", "U"))
_READ = encoded_node("Gather", (SOURCE, FROM), ROWS)
_WRITE = encoded_node("ScatterND", (TARGET, TO, ROWS), CHANGED)


def read_graph() -> bytes:
    """Return the graph that reads rows of a table."""
    return encoded_model([_READ], [_SOURCE, _FROM], [_ROWS])


def write_graph() -> bytes:
    """Return the graph that writes rows to a table."""
    return encoded_model([_WRITE], [_TARGET, _TO, _ROWS], [_CHANGED])


def copy_graph() -> bytes:
    """Return the graph that copies rows of one table to another."""
    return encoded_model([_READ, _WRITE], [_TARGET, _SOURCE, _FROM, _TO], [_CHANGED])


def clear_graph() -> bytes:
    """Return the graph that fills rows of a table with zeros."""
    old, zeros = encoded_node("Gather", (TARGET, FROM), "old"), encoded_node("Sub", ("old", "old"), ROWS)
    return encoded_model([old, zeros, _WRITE], [_TARGET, _FROM, _TO], [_CHANGED])
