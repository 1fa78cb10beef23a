"""The memory of one Ascend device: the DeviceMemory protocol over pyACL, with a context and a stream of its own.

Everything runs on the thread that made it. What travels between host and device goes through page-locked memory, since
only then copies are asynchronous.
"""

from typing import Any

from lopa.runtime.accelerator.memory import Array, DeviceMemory
from lopa.runtime.accelerator.page_locked import PageLocked
from lopa.runtime.ascend.calls import AclCalls
from lopa.runtime.ascend.process import AclProcess

COPY_ALIGNMENT = 64
"""Bytes; both addresses of an asynchronous copy are multiples."""
_HUGE_FIRST_P2P = 3
"""Huge pages where possible, in memory that other devices can copy from."""
_TO_DEVICE, _TO_HOST, _ON_DEVICES = 1, 2, 3


class AclMemory:
    """The DeviceMemory protocol."""

    def __init__(self, process: AclProcess, device: int) -> None:
        """Raises AclError when the device cannot be used."""
        self._process = process
        self._device = device
        self._acl: AclCalls = process.calls()
        self._allocated: set[int] = set()
        self._staging = PageLocked(lambda size: int(self._acl("rt.malloc_host", size)))
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
        """On which forwards run."""
        return self._stream

    @property
    def device(self) -> int:
        """Its number."""
        return self._device

    def allocate(self, size: int) -> int:
        """DeviceMemory.allocate: CANN aligns more than is asked for. Raises AclError when there is none left."""
        address = int(self._acl("rt.malloc", size, _HUGE_FIRST_P2P))
        self._allocated.add(address)
        return address

    def free(self, address: int) -> None:
        """DeviceMemory.free."""
        self._allocated.remove(address)
        self._acl("rt.free", address)

    def upload(self, target: int, source: Array) -> None:
        """DeviceMemory.upload."""
        self._copy(target, self._staging.copy_of(source), source.nbytes, _TO_DEVICE)

    def download(self, target: Array, source: int) -> None:
        """DeviceMemory.download."""
        self._copy(self._staging.piece_for(target), source, target.nbytes, _TO_HOST)

    def copy_pieces(self, target: int, target_step: int, source: int, source_step: int, size: int, count: int) -> None:
        """DeviceMemory.copy_pieces: one call each, since copies with steps are not for device to device."""
        for piece in range(count):
            self._copy(target + piece * target_step, source + piece * source_step, size, _ON_DEVICES)

    def fill_zero(self, target: int, size: int) -> None:
        """DeviceMemory.fill_zero."""
        self._acl("rt.memset_async", target, size, 0, size, self._stream)

    def synchronize(self) -> None:
        """DeviceMemory.synchronize."""
        arrived = self._staging.arrivals()
        self._acl("rt.synchronize_stream", self._stream)
        arrived()

    def reach(self, peer: DeviceMemory) -> bool:
        """DeviceMemory.reach: another Ascend device of this process, or the same one."""
        if not isinstance(peer, AclMemory):
            return False
        return peer.device == self._device or self._process.enable_peer(self._device, peer.device)

    def close(self) -> None:
        """DeviceMemory.close; goes on to the end whatever fails, and raises the first failure."""
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
