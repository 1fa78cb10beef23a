"""Protocol of a forward from device memory to device memory, as device sessions use it."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from lopa.runtime.accelerator.device_memory import Array, Buffer, DeviceMemory
from lopa.runtime.accelerator.graph_form import GraphForm
from lopa.runtime.bundle.buckets import ShapeBucket


class DeviceForward(Protocol):
    """One forward in the shape of a shape bucket, without state per request, over rows in device memory.

    Each forward is a QueuedForward or a HostBoundForward.
    """

    @property
    def memory(self) -> DeviceMemory:
        """Memory of the device, with the stream that forwards run on."""

    @property
    def form(self) -> GraphForm:
        """Form of the graph's inputs and outputs."""

    @property
    def buckets(self) -> Sequence[ShapeBucket]:
        """All shape buckets, as `are_valid_shape_buckets` requires."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Bytes of every input and output except the prefix, by name, enough for every shape bucket."""

    def close(self) -> None:
        """Free all resources except the memory. The queue must be empty."""


class QueuedForward(DeviceForward, Protocol):
    """A forward from device memory to device memory."""

    def enqueue(self, bucket: ShapeBucket, buffers: Mapping[str, Buffer]) -> None:
        """Enqueue a forward on the stream. `buffers` has every input and output of the contract by name.

        Each buffer has at least the size that the shape of `bucket` needs.
        """


@runtime_checkable
class AnyShapeForward(DeviceForward, Protocol):
    """A forward that also runs shapes outside its shape buckets, and may have no shape buckets."""

    def sizes_of(self, bucket: ShapeBucket) -> Mapping[str, int]:
        """Return the bytes of every input and output except the prefix, by name, for any shape."""


@runtime_checkable
class HostBoundForward(DeviceForward, Protocol):
    """A forward whose library copies small arrays itself. Only the prefix and the new rows are device memory."""

    def run(
        self,
        bucket: ShapeBucket,
        inputs: Mapping[str, Array],
        buffers: Mapping[str, Buffer],
        outputs: Mapping[str, Array],
    ) -> None:
        """Run a forward and fill the host arrays `outputs`. `inputs` are host arrays.

        `buffers` has the prefix and the new rows by name.
        """
