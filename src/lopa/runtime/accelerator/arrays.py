"""Inputs and outputs of a bundle's graph by name, for a forward in the shape of a shape bucket.

This module serves engines that receive shape and type with every address, in the manifest's dialect.
"""

from lopa.runtime.bundle.graph_signature import ArrayForm, arrays_of_values, inputs_of_graph, outputs_of_graph
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import past_names
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.contract.sizes import Sizes


class GraphArrays:
    """Arrays of the whole model's graph, for any shape."""

    def __init__(self, manifest: Manifest) -> None:
        whole = whole_model(manifest.dimensions.layers)
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
