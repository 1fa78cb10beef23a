"""The memory of one CUDA device: the DeviceMemory protocol over the CUDA runtime, with a stream of its own.

Everything runs on the thread that made it, since which device is meant is a matter of the thread. Engines run on the
same stream.
"""

from typing import Any

import numpy as np

from lopa.runtime.accelerator.memory import ALIGNMENT, Array, DeviceMemory, RowPlace
from lopa.runtime.accelerator.page_locked import PageLocked
from lopa.runtime.cuda.calls import CudaCalls
from lopa.runtime.cuda.row_kernel import RowKernel

_NO_FLAGS = 0


class CudaMemory:
    """The DeviceMemory protocol."""

    def __init__(self, cuda: CudaCalls, device: int) -> None:
        """Raises CudaError when the device cannot be used."""
        self._cuda = cuda
        self._device = device
        self._allocated: dict[int, int] = {}
        """What cudaMalloc gave, by the address made of it."""
        self._staging = PageLocked(lambda size: int(cuda("cudaMallocHost", size)))
        self._row_kernel: RowKernel | None = None
        self._table = 0
        """Address of the kernel's table."""
        self._default = cuda.runtime.cudaMemcpyKind.cudaMemcpyDefault  # the addresses say what is copied where
        cuda("cudaSetDevice", device)
        # Not the legacy default stream, nor one that waits for it: another library's work is no concern of this one's.
        self._stream: Any = cuda("cudaStreamCreateWithFlags", cuda.runtime.cudaStreamNonBlocking)

    @property
    def stream(self) -> int:
        """The handle of the stream, on which forwards run."""
        return int(self._stream)

    @property
    def device(self) -> int:
        """Its number."""
        return self._device

    def free_bytes(self) -> int:
        """Of the device's memory now, whoever uses it."""
        return int(self._cuda("cudaMemGetInfo"))

    def allocate(self, size: int) -> int:
        """DeviceMemory.allocate. Raises CudaError when there is none left.

        By cudaMalloc, since its memory can be read by every device that reaches this one, unlike that of a pool.
        """
        given = int(self._cuda("cudaMalloc", size + ALIGNMENT))  # which promises 256 bytes of alignment only
        address = -(-given // ALIGNMENT) * ALIGNMENT
        self._allocated[address] = given
        return address

    def free(self, address: int) -> None:
        """DeviceMemory.free."""
        self._cuda("cudaFree", self._allocated.pop(address))

    def upload(self, target: int, source: Array) -> None:
        """DeviceMemory.upload."""
        self._copy(target, self._staging.copy_of(source), source.nbytes)

    def download(self, target: Array, source: int) -> None:
        """DeviceMemory.download."""
        self._copy(self._staging.piece_for(target), source, target.nbytes)

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """DeviceMemory.copy_pieces, in one call.

        Between devices too: all addresses of a process are different, and copies between devices that reach each other
        are made by the same calls (CUDA C++ Programming Guide, peer-to-peer memory copy).
        """
        if count == 1:
            self._copy(target, source, size)
            return
        self._cuda(
            "cudaMemcpy2DAsync", target, target_step, source, source_step, size, count, self._default, self._stream
        )

    def use_row_kernel(self, kernel: RowKernel | None) -> None:
        """Copy rows by `kernel` from now on, which is closed with this memory; None: array after array."""
        if kernel is None:
            return
        self._row_kernel = kernel
        self._table = self.allocate(kernel.arrays * 2 * np.dtype(np.int64).itemsize)

    def copy_rows_at_once(self, target: RowPlace, source: RowPlace, size: int) -> bool:
        """RowCopier.copy_rows_at_once: if there is a kernel for it."""
        kernel = self._row_kernel
        if kernel is None:
            return False
        self.upload(self._table, np.array([source.addresses, target.addresses], np.int64).T.copy())
        row = kernel.row_bytes
        kernel.launch(self._stream, self._table, source.head_step // row, target.head_step // row, size // row)
        return True

    def fill_zero(self, target: int, size: int) -> None:
        """DeviceMemory.fill_zero."""
        self._cuda("cudaMemsetAsync", target, 0, size, self._stream)

    def synchronize(self) -> None:
        """DeviceMemory.synchronize."""
        arrived = self._staging.arrivals()
        self._cuda("cudaStreamSynchronize", self._stream)
        arrived()

    def reach(self, peer: DeviceMemory) -> bool:
        """DeviceMemory.reach: another CUDA device of this process, or the same one."""
        if not isinstance(peer, CudaMemory):
            return False
        if peer.device == self._device:
            return True
        if not self._cuda("cudaDeviceCanAccessPeer", self._device, peer.device):
            return False
        # A matter of the process, not of this memory: it stays enabled, and may be already.
        self._cuda("cudaDeviceEnablePeerAccess", peer.device, _NO_FLAGS, allowed=("cudaErrorPeerAccessAlreadyEnabled",))
        return True

    def close(self) -> None:
        """DeviceMemory.close; goes on to the end whatever fails, and raises the first failure."""
        if self._stream is None:
            return
        steps: list[tuple[Any, ...]] = [("cudaStreamSynchronize", self._stream)]
        steps += [("cudaFree", given) for given in self._allocated.values()]
        steps += [("cudaFreeHost", address) for address in self._staging.addresses]
        steps += [("cudaStreamDestroy", self._stream)]
        kernel, self._row_kernel = self._row_kernel, None
        self._allocated.clear()
        self._stream = None
        try:
            self._cuda.all(steps)
        finally:
            if kernel is not None:
                kernel.close()

    def _copy(self, target: int, source: int, size: int) -> None:
        self._cuda("cudaMemcpyAsync", target, source, size, self._default, self._stream)
