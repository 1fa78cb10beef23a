"""Memory of one CUDA device through the CUDA runtime, with its own stream (DeviceMemory protocol).

Use it on the thread that created it, because CUDA selects the device per thread. Engines run on the same stream.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.accelerator.device_memory import ALIGNMENT, Array, PinnedMemory
from lopa.runtime.cuda.cuda_calls import CudaCalls

_MAX_STAGED = 2**25
"""Bytes of a matrix that are staged at once."""


class CudaMemory:
    """Memory of a CUDA device."""

    packs_arrays = True

    def __init__(self, cuda: CudaCalls, device: int) -> None:
        """Select the device and create a stream. Raises CudaError if the device cannot be used."""
        self._cuda = cuda
        self._device = device
        self._allocated: dict[int, int] = {}
        """Addresses from cudaMalloc, by aligned address."""
        self._pinned: set[int] = set()
        self._events: list[Any] = []
        self._staging = PinnedMemory(lambda size: int(cuda("cudaMallocHost", size)))
        self._default = (
            cuda.runtime.cudaMemcpyKind.cudaMemcpyDefault
        )  # the driver infers the direction from the addresses
        cuda("cudaSetDevice", device)
        # A separate non-blocking stream does not wait for other libraries' work on the default stream.
        self._stream: Any = cuda("cudaStreamCreateWithFlags", cuda.runtime.cudaStreamNonBlocking)

    @property
    def stream(self) -> int:
        """Handle of the stream that forwards run on."""
        return int(self._stream)

    @property
    def device(self) -> int:
        """Number of the device."""
        return self._device

    def free_bytes(self) -> int:
        """Return the free bytes of the device's memory, considering all processes."""
        return int(self._cuda("cudaMemGetInfo"))

    def allocate(self, size: int) -> int:
        """Allocate with cudaMalloc. Raises CudaError if memory is full."""
        raw = int(self._cuda("cudaMalloc", size + ALIGNMENT))  # cudaMalloc guarantees only an alignment of 256 bytes
        address = -(-raw // ALIGNMENT) * ALIGNMENT
        self._allocated[address] = raw
        return address

    def free(self, address: int) -> None:
        """Free memory from `allocate`."""
        self._cuda("cudaFree", self._allocated.pop(address))

    def pinned_block(self, size: int) -> npt.NDArray[np.uint8]:
        """Return pinned host memory, which `copy` reads and writes asynchronously."""
        address = int(self._cuda("cudaMallocHost", size))
        self._pinned.add(address)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def free_pinned_block(self, block: npt.NDArray[np.uint8]) -> None:
        """Free memory from `pinned_block`."""
        self._pinned.remove(block.ctypes.data)
        self._cuda("cudaFreeHost", block.ctypes.data)

    def event(self) -> Any:
        """Return a new event. `close` destroys it."""
        self._events.append(self._cuda("cudaEventCreateWithFlags", self._cuda.runtime.cudaEventDisableTiming))
        return self._events[-1]

    def record(self, event: Any) -> None:
        """Let `wait_for` wait for the work that is enqueued so far."""
        self._cuda("cudaEventRecord", event, self._stream)

    def wait_for(self, event: Any) -> None:
        """Wait until the work before the last `record` is done. Any thread may call this."""
        self._cuda("cudaEventSynchronize", event)

    def free_event(self, event: Any) -> None:
        """Destroy an event."""
        self._events.remove(event)
        self._cuda("cudaEventDestroy", event)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes between device and pinned host memory, in either direction."""
        self._cuda("cudaMemcpyAsync", target, source, size, self._default, self._stream)

    def upload(self, target: int, source: Array) -> None:
        """Copy a host array to the device through pinned memory."""
        self.copy(target, self._staging.staged_copy(source), source.nbytes)

    def upload_side_by_side(self, target: int, parts: Sequence[Array]) -> None:
        """Fill memory with matrices side by side, [rows, columns] each, through little pinned memory. Waits for it."""
        row = sum(part[0].nbytes for part in parts)
        step = max(1, _MAX_STAGED // row)
        for first in range(0, len(parts[0]), step):
            rows = [part[first : first + step] for part in parts]
            size = len(rows[0]) * row
            piece = self._staging.take(size)
            staged = (ctypes.c_char * size).from_address(piece)
            np.concatenate(rows, axis=1, out=np.frombuffer(staged, rows[0].dtype).reshape(len(rows[0]), -1))
            self.copy(target + first * row, piece, size)
            self.synchronize()

    def download(self, target: Array, source: int) -> None:
        """Fill a host array through pinned memory. It is valid after `synchronize`."""
        self.copy(self._staging.piece_for(target), source, target.nbytes)

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """Copy pieces at fixed distances with one call."""
        if count == 1:
            self.copy(target, source, size)
            return
        self._cuda(
            "cudaMemcpy2DAsync", target, target_step, source, source_step, size, count, self._default, self._stream
        )

    def fill_zero(self, target: int, size: int) -> None:
        """Fill memory with zeros."""
        self._cuda("cudaMemsetAsync", target, 0, size, self._stream)

    def synchronize(self) -> None:
        """Wait for the stream, and fill the host arrays of pending downloads."""
        finish = self._staging.arrivals()
        self._cuda("cudaStreamSynchronize", self._stream)
        finish()

    def close(self) -> None:
        """Free the stream and all memory, even if some calls fail. Raises the first failure."""
        if self._stream is None:
            return
        steps: list[tuple[Any, ...]] = [("cudaStreamSynchronize", self._stream)]
        steps += [("cudaFree", raw) for raw in self._allocated.values()]
        steps += [("cudaFreeHost", address) for address in (*self._staging.addresses, *self._pinned)]
        steps += [("cudaEventDestroy", event) for event in self._events]
        steps += [("cudaStreamDestroy", self._stream)]
        self._allocated.clear()
        self._stream = None
        self._cuda.all(steps)
