"""Everything that goes in and out of a bundle's graph for a forward in the shape of a bucket, by name.

For engines that are told shapes and types with every address, in the manifest's dialect. Knows no engine.
"""

from lopa.runtime.bundle.graph_signature import ArrayForm, arrays_of_values, inputs_of_graph, outputs_of_graph
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import past_names
from lopa.runtime.contract.model_part import whole_model
from lopa.runtime.contract.portable_form import PAST
from lopa.runtime.contract.sizes import Sizes


class GraphArrays:
    """Of the whole model; worked out once, and then for one shape after the other."""

    def __init__(self, manifest: Manifest) -> None:
        whole = whole_model(manifest.dimensions.layers)
        self._inputs = inputs_of_graph(manifest, whole)
        self._outputs = outputs_of_graph(manifest, whole)
        past = {PAST, *past_names(manifest.dimensions.layers)}
        self._prefix = {name: form for name, form in self._inputs.items() if name in past}
        self._but_prefix = {name: form for name, form in (self._inputs | self._outputs).items() if name not in past}

    def inputs(self, bucket: Sizes) -> dict[str, ArrayForm]:
        """All inputs, in order."""
        return arrays_of_values(self._inputs, bucket)

    def outputs(self, bucket: Sizes) -> dict[str, ArrayForm]:
        """All outputs, in order."""
        return arrays_of_values(self._outputs, bucket)

    def input_shapes(self, bucket: Sizes) -> dict[str, tuple[int, ...]]:
        """Of all inputs, in order."""
        return {name: array.shape for name, array in self.inputs(bucket).items()}

    def bytes_but_prefix(self, *buckets: Sizes) -> dict[str, int]:
        """Of every input and output but the prefix: enough for each of `buckets`, at least one."""
        each = [arrays_of_values(self._but_prefix, bucket) for bucket in buckets]
        return {name: max(arrays[name].size for arrays in each) for name in self._but_prefix}

    def prefix_bytes(self, bucket: Sizes) -> int:
        """Of all its prefixes together."""
        return sum(array.size for array in arrays_of_values(self._prefix, bucket).values())
