"""Plan of a bundle's weights: its tensors, their names in the checkpoint, and their places in the weights file.

It depends on names and shapes, not on values.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.export.families.family import Architecture
from lopa.runtime.bundle.manifest import WEIGHT_ALIGNMENT, TensorRecord, scale_name
from lopa.runtime.bundle.network import EMBEDDING, HEAD, NetworkSpec, TensorSpec
from lopa.runtime.errors import BadInputError

Dtype = Literal["float32", "float16", "bfloat16"]
IntegerDtype = Literal["int8", "int4"]
ITEM_BITS: dict[Dtype | IntegerDtype, int] = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}
BLOCK = 32
"""Number of inputs that share an int4 scale."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a checkpoint's tensors, by name."""


@dataclass(frozen=True)
class PlannedWeight:
    """One tensor of the bundle."""

    name: str
    source: str
    """Name of the tensor in the checkpoint."""
    tensor: TensorSpec
    quantized: IntegerDtype | None = None
    """Type of the integers, or None. The scales follow as a separate tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the bundle."""
        return self.tensor.shape

    @property
    def transposed(self) -> bool:
        """True for a matrix: the checkpoint has [outputs, inputs], the bundle [inputs, outputs]."""
        return self.tensor.role == "matrix"

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Shape in the checkpoint."""
        if not self.transposed:
            return self.shape
        *stacked, inputs, outputs = self.shape
        return (*stacked, outputs, inputs)


WeightPlan = Sequence[PlannedWeight]
"""Every tensor of a bundle, in the order of writing."""


def weight_plan_from_network(network: NetworkSpec, architecture: Architecture, *, tied: bool) -> WeightPlan:
    """Return the plan of a bundle in floating point, with the source names of `architecture`.

    With tied embeddings the bundle still has a separate head, whose source is the embedding.
    """
    sources = dict(architecture.outer_names)
    if tied:
        sources[HEAD] = sources[EMBEDDING]
    for i, layer in enumerate(network.layers):
        prefix = architecture.layer_prefix.format(layer=i)
        sources |= {f"layers.{i}.{name}": prefix + architecture.layer_names[name] for name in layer.tensors}
    return [PlannedWeight(name, sources[name], tensor) for name, tensor in network.tensors.items()]


def tensor_records_from_plan(plan: WeightPlan, dtype: Dtype) -> dict[str, TensorRecord]:
    """Return offset and length of every tensor. Tensors follow each other at multiples of WEIGHT_ALIGNMENT.

    Tensors that are not quantized and int4 scales have the type `dtype`. Scales of int8 are float32, because the graph
    multiplies the float32 result of a product by them.
    """
    records: dict[str, TensorRecord] = {}
    offset = 0
    for weight in plan:
        tensors: list[tuple[str, Dtype | IntegerDtype, tuple[int, ...]]]
        if weight.quantized is None:
            tensors = [(weight.name, dtype, weight.shape)]
        else:
            *stacked, inputs, outputs = weight.shape
            scales = (*stacked, outputs) if weight.quantized == "int8" else (*stacked, inputs // BLOCK, outputs)
            scale_dtype: Dtype = "float32" if weight.quantized == "int8" else dtype
            tensors = [(weight.name, weight.quantized, weight.shape), (scale_name(weight.name), scale_dtype, scales)]
        for name, item, shape in tensors:
            length = -(-math.prod(shape) * ITEM_BITS[item] // 8)
            records[name] = TensorRecord(dtype=item, shape=list(shape), offset=offset, length=length)
            offset += -(-length // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
    return records


def check_stored_tensors(plan: WeightPlan, stored: Shapes, *, ignored: Collection[str], source: str) -> None:
    """Raise BadInputError unless `stored` has exactly the planned tensors, in their shapes.

    The names in `ignored` may also be present, and so may the tables of rotary angles of older checkpoints.
    """
    for weight in plan:
        if weight.source not in stored:
            raise BadInputError(
                f"{source} has no tensor {weight.source}",
                expected=f"that tensor, with the shape {list(weight.source_shape)}",
                remedy="check that config.json belongs to these weights, or copy the checkpoint again",
            )
        found = stored[weight.source]
        if found != weight.source_shape:
            raise BadInputError(
                f"{source}: {weight.source} has the shape {list(found)}",
                expected=f"{list(weight.source_shape)}, from config.json",
                remedy="check that config.json belongs to these weights",
            )
    unknown = set(stored) - {weight.source for weight in plan} - set(ignored)
    for name in sorted(unknown):
        if not name.endswith("rotary_emb.inv_freq"):
            raise BadInputError(
                f"{source} has the tensor {name}, which this architecture does not use",
                expected="only the tensors that config.json describes",
                remedy="check that config.json belongs to these weights",
            )
