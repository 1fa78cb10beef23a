"""Memory of one Ascend device through pyACL, with its own context and stream (DeviceMemory protocol).

Use it on the thread that created it. Host copies go through pinned memory, because only such copies are
asynchronous.
"""

from typing import Any

from lopa.runtime.accelerator.device_memory import Array, PinnedMemory
from lopa.runtime.ascend.acl_calls import AclCalls
from lopa.runtime.ascend.process import AclProcess

COPY_ALIGNMENT = 64
"""Alignment in bytes of both addresses of an asynchronous copy."""
_HUGE_FIRST = 0
"""Allocation policy: huge pages if possible."""
_TO_DEVICE, _TO_HOST, _ON_DEVICE = 1, 2, 3


class AclMemory:
    """Memory of an Ascend device."""

    packs_arrays = True

    def __init__(self, process: AclProcess, device: int) -> None:
        """Create a context and a stream. Raises AclError if the device cannot be used."""
        self._process = process
        self._device = device
        self._acl: AclCalls = process.calls()
        self._allocated: set[int] = set()
        self._staging = PinnedMemory(lambda size: int(self._acl("rt.malloc_host", size)))
        self._context: Any = None
        self._stream: Any = None
        process.use_device(device)
        try:
            self._context = self._acl("rt.create_context", device)
            self._stream = self._acl("rt.create_stream")
        except BaseException:
            self.close()
            raise

    @property
    def stream(self) -> Any:
        """Handle of the stream that forwards run on."""
        return self._stream

    def allocate(self, size: int) -> int:
        """Allocate device memory, which CANN aligns sufficiently. Raises AclError if memory is full."""
        address = int(self._acl("rt.malloc", size, _HUGE_FIRST))
        self._allocated.add(address)
        return address

    def free(self, address: int) -> None:
        """Free memory from `allocate`."""
        self._allocated.remove(address)
        self._acl("rt.free", address)

    def upload(self, target: int, source: Array) -> None:
        """Copy a host array to the device through pinned memory."""
        self._copy(target, self._staging.staged_copy(source), source.nbytes, _TO_DEVICE)

    def download(self, target: Array, source: int) -> None:
        """Fill a host array through pinned memory. It is valid after `synchronize`."""
        self._copy(self._staging.piece_for(target), source, target.nbytes, _TO_HOST)

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """Copy the pieces with one call each, because pyACL has no strided copy on a device."""
        for piece in range(count):
            self._copy(target + piece * target_step, source + piece * source_step, size, _ON_DEVICE)

    def fill_zero(self, target: int, size: int) -> None:
        """Fill memory with zeros."""
        self._acl("rt.memset_async", target, size, 0, size, self._stream)

    def synchronize(self) -> None:
        """Wait for the stream, and fill the host arrays of pending downloads."""
        finish = self._staging.arrivals()
        self._acl("rt.synchronize_stream", self._stream)
        finish()

    def close(self) -> None:
        """Free the stream and all memory, even if some calls fail. Raises the first failure."""
        steps: list[tuple[Any, ...]] = [("rt.synchronize_stream", self._stream)] if self._stream is not None else []
        steps += [("rt.free", address) for address in self._allocated]
        steps += [("rt.free_host", address) for address in self._staging.addresses]
        steps += [("rt.destroy_stream", self._stream)] if self._stream is not None else []
        steps += [("rt.destroy_context", self._context)] if self._context is not None else []
        self._allocated.clear()
        self._stream = self._context = None
        try:
            self._acl.all(steps)
        finally:
            self._process.leave_device(self._device)

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        self._acl("rt.memcpy_async", target, size, source, size, kind, self._stream)
