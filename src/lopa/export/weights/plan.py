"""Which tensors a bundle holds, what each is called in the checkpoint, and where each will lie in the weights file.

Knows names and shapes only; no values.
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
"""Inputs that share an int4 scale."""
Shapes = Mapping[str, tuple[int, ...]]
"""Of the tensors of a checkpoint, by name."""


@dataclass(frozen=True)
class PlannedWeight:
    """One tensor of the bundle."""

    name: str
    source: str
    """Its name in the checkpoint."""
    tensor: TensorSpec
    quantized: IntegerDtype | None = None
    """Written as integers, with its scales as a tensor of their own behind it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in the bundle."""
        return self.tensor.shape

    @property
    def transposed(self) -> bool:
        """True for a matrix: the checkpoint has [outputs, inputs], the bundle [inputs, outputs]."""
        return self.tensor.role == "matrix"

    @property
    def source_shape(self) -> tuple[int, ...]:
        """Sizes in the checkpoint."""
        if not self.transposed:
            return self.shape
        *stacked, inputs, outputs = self.shape
        return (*stacked, outputs, inputs)


WeightPlan = Sequence[PlannedWeight]
"""Every tensor of a bundle, in the order in which it is written."""


def weight_plan_from_network(network: NetworkSpec, architecture: Architecture, *, tied: bool) -> WeightPlan:
    """Return the plan of a bundle in floats, whose sources have the names of `architecture`.

    A tied head is a tensor of its own in the bundle, with the embedding as its source.
    """
    sources = dict(architecture.outer_names)
    if tied:
        sources[HEAD] = sources[EMBEDDING]
    for i, layer in enumerate(network.layers):
        prefix = architecture.layer_prefix.format(layer=i)
        sources |= {f"layers.{i}.{name}": prefix + architecture.layer_names[name] for name in layer.tensors}
    return [PlannedWeight(name, sources[name], tensor) for name, tensor in network.tensors.items()]


def tensor_records_from_plan(plan: WeightPlan, dtype: Dtype) -> dict[str, TensorRecord]:
    """Offset and length of every tensor, one behind the other at multiples of WEIGHT_ALIGNMENT.

    `dtype` is that of the tensors that are not quantized, and of int4 scales. Scales of int8 are float32, since the
    graph multiplies by them behind a product in float32.
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

    `ignored` may be there as well; so may tables of rotary angles, which older checkpoints carry.
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
