"""What a device session asks of whoever computes a forward from device memory to device memory. Knows no vendor."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from lopa.runtime.accelerator.graph_form import GraphForm
from lopa.runtime.accelerator.memory import Buffer, DeviceMemory
from lopa.runtime.bundle.buckets import ShapeBucket


class DeviceForward(Protocol):
    """One forward in the shape of a bucket, from device memory to device memory, without memory of requests."""

    @property
    def memory(self) -> DeviceMemory:
        """Of the device, with the stream that forwards run on."""

    @property
    def form(self) -> GraphForm:
        """The shapes of the graph's inputs and outputs."""

    @property
    def buckets(self) -> Sequence[ShapeBucket]:
        """All shapes there are, as buckets.buckets_can_be_used wants them."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes to have for every input and output but the prefix, by name: enough for every bucket."""

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """Put a forward in the stream's queue; `buffers` has every input and output of the contract by name.

        Each holds at least what the shape of `bucket` needs.
        """

    def close(self) -> None:
        """Free everything but the memory; nothing is in the queue."""


@runtime_checkable
class AnyShapeForward(DeviceForward, Protocol):
    """A forward that runs shapes which are none of its buckets too; it may have no buckets at all."""

    def sizes_of(self, bucket: ShapeBucket) -> Mapping[str, int]:
        """Bytes of every input and output but the prefix in any shape, by name."""
