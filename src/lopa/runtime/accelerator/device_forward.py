"""Forwards from device memory to device memory: the protocol that device sessions use, and their arrays by name."""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from lopa.runtime.accelerator.device_memory import Array, Buffer, DeviceMemory
from lopa.runtime.accelerator.graph_form import GraphForm
from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket, bucket_from_sizes
from lopa.runtime.bundle.graph_signature import (
    ArrayForm,
    arrays_of_values,
    inputs_of_graph,
    outputs_of_graph,
)
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import past_names
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.contract.sizes import Sizes


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


class GraphArrays:
    """Arrays of the whole model's graph, for any shape."""

    def __init__(self, manifest: Manifest) -> None:
        """Read the arrays from the manifest."""
        whole = manifest.dimensions.whole_model
        self._inputs = inputs_of_graph(manifest, whole)
        self._outputs = outputs_of_graph(manifest, whole)
        past = {PAST, *past_names(manifest.dimensions.layers)}
        self._prefix = {name: form for name, form in self._inputs.items() if name in past}
        self._without_prefix = {name: form for name, form in (self._inputs | self._outputs).items() if name not in past}

    def inputs(self, bucket: Sizes) -> dict[str, ArrayForm]:
        """Return all inputs, in order."""
        return arrays_of_values(self._inputs, bucket)

    def outputs(self, bucket: Sizes) -> dict[str, ArrayForm]:
        """Return all outputs, in order."""
        return arrays_of_values(self._outputs, bucket)

    def input_shapes(self, bucket: Sizes) -> dict[str, tuple[int, ...]]:
        """Return the shapes of all inputs, in order."""
        return {name: array.shape for name, array in self.inputs(bucket).items()}

    def bytes_without_prefix(self, *buckets: Sizes) -> dict[str, int]:
        """Return the bytes of every input and output except the prefix, enough for each of `buckets` (at least one)."""
        each = [arrays_of_values(self._without_prefix, bucket) for bucket in buckets]
        return {name: max(arrays[name].size for arrays in each) for name in self._without_prefix}

    def prefix_bytes(self, bucket: Sizes) -> int:
        """Return the bytes of all prefix arrays."""
        return sum(array.size for array in arrays_of_values(self._prefix, bucket).values())


_NO_SIZES = Sizes(0, 0, 0, 0, 0)
"""Sizes of the buffers to allocate in advance if there are no shape buckets."""


class AnyShapes:
    """The shapes of a forward that has shape buckets, or none, and runs any other shape too."""

    def __init__(self, manifest: Manifest, buckets: Sequence[ShapeBucket], window_step: int) -> None:
        """Store the shape buckets. Windows of other shapes are rounded up to multiples of `window_step`."""
        self.buckets = buckets
        self.arrays = GraphArrays(manifest)
        self.sizes = self.arrays.bytes_without_prefix(_NO_SIZES, *buckets)
        self._table = BucketTable(buckets) if buckets else None
        self._window_step = window_step

    def sizes_of(self, bucket: ShapeBucket) -> dict[str, int]:
        """Return the bytes of every input and output except the prefix."""
        return self.arrays.bytes_without_prefix(bucket)

    def bucket_for(self, sizes: Sizes) -> ShapeBucket:
        """Return the best shape bucket for a forward, or the forward's own shape with a rounded-up window if no bucket
        fits.
        """
        if self._table is not None and self._table.holds(sizes):
            return self._table.bucket_for(sizes)
        window = -(-sizes.window // self._window_step) * self._window_step
        return bucket_from_sizes(msgspec.structs.replace(sizes, window=window), seconds=0.0)
