"""A stand-in for `cuda.bindings.runtime` (NVIDIA's cuda-bindings) over host memory, with the functions used here.

It is not vendor software, and nothing in it is recorded. A test compares its functions and numbers with the real
package. It is strict. Undefined behavior raises ViolationError and is recorded in `violations`. Documented errors
return their code. Work of a stream runs only on synchronization, and memory starts with garbage.
"""

# Names as in cuda-bindings:
# ruff: noqa: N801, N802, N803, N815

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from tests.runtime.accelerator.host_blocks import HostBlocks

ALIGNED = 256
"""Alignment of cudaMalloc, in bytes. Addresses here are never aligned to more."""
MAX_PITCH = (1 << 31) - 1


class cudaError_t(IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidPitchValue = 12
    cudaErrorInsufficientDriver = 35
    cudaErrorNoDevice = 100
    cudaErrorInvalidDevice = 101
    cudaErrorIllegalAddress = 700


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToHost = 0
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3
    cudaMemcpyDefault = 4


SUCCESS = cudaError_t.cudaSuccess


class cudaStream_t:
    def __init__(self, number: int) -> None:
        self._number = number

    def __int__(self) -> int:
        return self._number


class cudaEvent_t:
    """An event."""


@dataclass(eq=False)
class Stream:
    device: int
    done: int = 0
    """Number of pieces of work that ran."""
    queue: list[tuple[Callable[[], None], tuple[int, ...]]] = field(default_factory=list)
    """Queued work and the addresses that it uses."""


class StandInCudart:
    """The CUDA runtime of one process on a machine with several devices."""

    cudaError_t = cudaError_t
    cudaMemcpyKind = cudaMemcpyKind
    cudaStreamNonBlocking = 1
    cudaEventDisableTiming = 2

    def __init__(self, devices: int = 4, *, capacity: int = 1 << 34) -> None:
        self.devices, self.capacity = devices, capacity
        self.violations: list[str] = []
        self.set_driver_device: Callable[[int], None] = lambda _: None
        """Makes a device current in a stand-in driver, on the calling thread."""
        self.calls: dict[str, int] = defaultdict(int)
        self.codes: dict[str, list[cudaError_t | None]] = {}
        """Codes that the next calls of a name return without doing anything. None runs the call."""
        self._capturing: int | None = None
        """Thread that captures a graph in global mode."""
        self._lock = threading.RLock()
        self._taken: dict[int, int] = defaultdict(int)
        self._current: dict[int, int] = {}
        self._streams: dict[int, Stream] = {}
        self._events: dict[cudaEvent_t, tuple[Stream, int] | None] = {}
        """Stream of each recorded event, and the number of pieces of its work before the record."""
        self._blocks = HostBlocks(self.violations)
        for name in dir(self):
            if name.startswith("cuda") and callable(getattr(self, name)) and not isinstance(getattr(self, name), type):
                setattr(self, name, self._guarded(name, getattr(self, name)))

    def _guarded(self, name: str, function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            with self._lock:
                self.require_alone(name)
                self.calls[name] += 1
                waiting = self.codes.get(name)
                code = waiting.pop(0) if waiting else None
                if code is not None:
                    return code, None
                return function(*arguments)

        call.__wrapped__ = function  # type: ignore[attr-defined] - for inspect.signature
        return call

    # -- errors and devices

    def cudaGetErrorString(self, error: cudaError_t) -> tuple[Any, ...]:
        return SUCCESS, f"what {error.name} means".encode()

    def cudaGetDeviceCount(self) -> tuple[Any, ...]:
        return SUCCESS, self.devices

    def cudaSetDevice(self, device: int) -> tuple[Any, ...]:
        if device not in range(self.devices):
            return (cudaError_t.cudaErrorInvalidDevice,)
        self._current[threading.get_ident()] = device
        self.set_driver_device(device)
        return (SUCCESS,)

    # -- streams

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, ...]:
        if flags not in (0, self.cudaStreamNonBlocking):
            return cudaError_t.cudaErrorInvalidValue, None
        number = (1 << 62) + self.calls["cudaStreamCreateWithFlags"]
        self._streams[number] = Stream(self._device())
        return SUCCESS, cudaStream_t(number)

    def cudaStreamDestroy(self, stream: Any) -> tuple[Any, ...]:
        self._require(not self._stream(stream).queue, "a stream with queued work destroyed")
        del self._streams[int(stream)]
        return (SUCCESS,)

    def cudaStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        self._run(self._stream(stream))
        return (SUCCESS,)

    # -- events

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[Any, ...]:
        self._device()
        if flags != self.cudaEventDisableTiming:
            return cudaError_t.cudaErrorInvalidValue, None
        event = cudaEvent_t()
        self._events[event] = None
        return SUCCESS, event

    def cudaEventRecord(self, event: Any, stream: Any) -> tuple[Any, ...]:
        self._require(event in self._events, "an unknown event")
        found = self._stream(stream)
        self._events[event] = found, found.done + len(found.queue)
        return (SUCCESS,)

    def cudaEventSynchronize(self, event: Any) -> tuple[Any, ...]:
        """Run the work before the last record, on any thread. An event that was not recorded counts as done."""
        self._require(event in self._events, "an unknown event")
        recorded = self._events[event]
        if recorded is not None:
            stream, number = recorded
            self._run(stream, number - stream.done)
        return (SUCCESS,)

    def cudaEventDestroy(self, event: Any) -> tuple[Any, ...]:
        self._require(event in self._events, "an unknown event")
        del self._events[event]
        return (SUCCESS,)

    # -- memory

    def cudaMemGetInfo(self) -> tuple[Any, ...]:
        return SUCCESS, self.capacity - self.allocated(self._device()), self.capacity

    def cudaMalloc(self, size: int) -> tuple[Any, ...]:
        device = self._device()
        self._require(type(size) is int and size > 0, f"{size!r} bytes requested")
        if self.allocated(device) + size > self.capacity:
            return cudaError_t.cudaErrorMemoryAllocation, None
        return SUCCESS, self._blocks.add_real(size, ALIGNED, device)

    def cudaFree(self, devPtr: int) -> tuple[Any, ...]:
        return self._free(devPtr, on_host=False)

    def cudaMallocHost(self, size: int) -> tuple[Any, ...]:
        self._device()
        return SUCCESS, self._blocks.add_real(size, ALIGNED, None)

    def cudaFreeHost(self, ptr: int) -> tuple[Any, ...]:
        return self._free(ptr, on_host=True)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Any) -> tuple[Any, ...]:
        return self._copy(dst, count, src, count, count, 1, kind, stream)

    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: Any, stream: Any
    ) -> tuple[Any, ...]:
        if not width <= min(dpitch, spitch) or max(dpitch, spitch) > MAX_PITCH:
            return (cudaError_t.cudaErrorInvalidPitchValue,)
        return self._copy(dst, dpitch, src, spitch, width, height, kind, stream)

    def cudaMemsetAsync(self, devPtr: int, value: int, count: int, stream: Any) -> tuple[Any, ...]:
        found = self._stream(stream)
        self._require(self.device_of(devPtr, count) == found.device, "memory of another device, or of none, set")
        self.enqueue(stream, lambda: self.view(devPtr, count).fill(value), (devPtr,))
        return (SUCCESS,)

    # -- for tests and for other stand-ins

    def enqueue(self, stream: Any, work: Callable[[], None], addresses: tuple[int, ...]) -> None:
        """Enqueue work that uses memory at `addresses` on a stream."""
        self._stream(stream).queue.append((work, addresses))

    def drain(self, stream: int) -> None:
        """Run the queued work of a stream."""
        self.cudaStreamSynchronize(stream)

    def stream_device(self, stream: int) -> int:
        """Return the device of an existing stream."""
        return self._stream(stream).device

    def require_alone(self, what: str) -> None:
        """Raise unless no other thread captures."""
        alone = self._capturing in (None, threading.get_ident())
        self._require(alone, f"{what} while another thread captures a graph: it fails, and the capture too")

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Forbid all calls of other threads while the calling thread captures in global mode."""
        with self._lock:
            self._require(self._capturing is None, "two captures at once")
            self._capturing = threading.get_ident()
        try:
            yield
        finally:
            self._capturing = None

    def view(self, address: int, size: int) -> np.ndarray:
        """Return a view of the bytes, which must be in one allocation."""
        return self._blocks.view(address, size)

    def device_of(self, address: int, size: int) -> int | None:
        """Return the device that owns the memory, or None for host memory."""
        owner: int | None = self._blocks.holding(address, size).owner
        return owner

    @property
    def left(self) -> list[str]:
        """Names of resources that were not freed."""
        streams = [f"stream {number}" for number in self._streams]
        return [*streams, *(f"event {each}" for each in self._events), *(f"memory {each}" for each in self._blocks)]

    def allocated(self, device: int) -> int:
        """Return the bytes currently allocated on a device."""
        return self._blocks.total(lambda owner: owner == device) + self._taken[device]

    def take(self, size: int) -> Callable[[], None]:
        """Simulate an allocation by another library on the thread's device. Return a function that frees it."""
        device = self._device()
        self._taken[device] += size

        def release() -> None:
            self._taken[device] -= size

        return release

    # -- internals

    def _require(self, condition: bool, rule: str) -> None:
        self._blocks.require(condition, rule)

    def _run(self, stream: Stream, count: int | None = None) -> None:
        """Run the first pieces of a stream's work, or all."""
        for work, _ in stream.queue[:count] if count is None or count > 0 else ():
            stream.queue.pop(0)
            stream.done += 1
            work()

    def _device(self) -> int:
        device = self._current.get(threading.get_ident())
        self._require(device is not None, "a call on a thread that set no device")
        return device

    def _stream(self, stream: Any) -> Stream:
        self._require(int(stream) in self._streams, "an unknown stream")
        found = self._streams[int(stream)]
        self._require(found.device == self._device(), "a stream used on a thread of another device")
        return found

    def _free(self, address: int, *, on_host: bool) -> tuple[Any, ...]:
        self._device()
        found = self._blocks.get(address)
        if found is None or (found.owner is None) != on_host:
            return (cudaError_t.cudaErrorInvalidValue,)
        queued = (each for stream in self._streams.values() for _, uses in stream.queue for each in uses)
        self._blocks.remove(address, queued)
        return (SUCCESS,)

    def _copy(
        self,
        target: int,
        target_step: int,
        source: int,
        source_step: int,
        size: int,
        count: int,
        kind: Any,
        handle: Any,
    ) -> tuple[Any, ...]:
        stream = self._stream(handle)
        self._require(kind == cudaMemcpyKind.cudaMemcpyDefault, "an unsupported kind of copy")
        if size and count:
            owners = [
                self.device_of(address, step * (count - 1) + size)
                for address, step in ((target, target_step), (source, source_step))
            ]
            for owner in owners:
                self._require(owner in (None, stream.device), f"device {stream.device} uses memory of {owner}")
        ends = target + target_step * (count - 1) + size, source + source_step * (count - 1) + size
        self._require(ends[0] <= source or ends[1] <= target or not size, "a copy within the same memory")

        def work() -> None:
            for piece in range(count):
                self._blocks.copy_bytes(target + piece * target_step, source + piece * source_step, size)

        self.enqueue(handle, work, (target, source))
        return (SUCCESS,)
