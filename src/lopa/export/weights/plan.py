"""Plan of a bundle's weights: its tensors, their names in the checkpoint, and their places in the weights file.

It depends on names and shapes, not on values.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lopa.export.families.family import Architecture
from lopa.runtime.bundle.manifest import WEIGHT_ALIGNMENT, TensorRecord, scale_name
from lopa.runtime.bundle.network import NetworkSpec, TensorSpec
from lopa.runtime.errors import BadInputError

Dtype = Literal["float32", "float16", "bfloat16"]
QuantizedKind = Literal["int8", "int4", "fp8"]
StoredDtype = Dtype | Literal["int8", "int4", "float8e4m3fn"]
_STORED: dict[QuantizedKind, StoredDtype] = {"int8": "int8", "int4": "int4", "fp8": "float8e4m3fn"}
_ITEM_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4, "float8e4m3fn": 8}
BLOCK = 32
"""Number of inputs that share an int4 scale."""
Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of a checkpoint's tensors, by name."""


@dataclass(frozen=True)
class WeightPart:
    """Rows of one tensor of the checkpoint, which are all or some of a bundle's tensor."""

    source: str
    """Name of the tensor in the checkpoint."""
    source_shape: tuple[int, ...]
    """Shape of the whole tensor in the checkpoint."""
    first: int
    """First row, if the tensor is viewed as a matrix: its leading axes are folded into rows."""
    rows: int


@dataclass(frozen=True)
class PlannedWeight:
    """One tensor of the bundle."""

    name: str
    source: str
    """Name of the tensor in the checkpoint. For experts in separate tensors it contains EXPERT."""
    tensor: TensorSpec
    quantized: QuantizedKind | None = None
    """Type of the stored numbers, or None. The scales follow as a separate tensor."""
    first_row: int = 0
    """First row in a tensor of the checkpoint that contains several tensors of the bundle."""
    source_rows: int | None = None
    """Number of rows of such a tensor, or None."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the bundle."""
        return self.tensor.shape

    @property
    def transposed(self) -> bool:
        """True for a matrix: the checkpoint has [outputs, inputs], the bundle [inputs, outputs]."""
        return self.tensor.role == "matrix"

    @property
    def parts(self) -> tuple[WeightPart, ...]:
        """Parts in the checkpoint: one for each of several stacked matrices, otherwise a single one."""
        shape = self.shape
        if self.transposed:
            shape = (*shape[:-2], shape[-1], shape[-2])
        if len(shape) < _STACKED_AXES:
            return (WeightPart(self.source, (self.source_rows or shape[0], *shape[1:]), self.first_row, shape[0]),)
        experts, rows = shape[:2]
        sources = (self.source.replace(EXPERT, str(expert)) for expert in range(experts))
        return tuple(WeightPart(source, shape[1:], 0, rows) for source in sources)


EXPERT = "{expert}"
"""Place of an expert's number in the name of its tensor."""
_STACKED_AXES = 3
"""Number of axes of stacked matrices."""
WeightPlan = Sequence[PlannedWeight]
"""Every tensor of a bundle, in the order of writing."""


def weight_plan_from_network(network: NetworkSpec, architecture: Architecture) -> WeightPlan:
    """Return the plan of a bundle in floating point, with the source names of `architecture`."""
    sources = dict(architecture.outer_names)
    for i, layer in enumerate(network.layers):
        for name in layer.tensors:
            theirs = architecture.layer_names[name]
            whole = theirs if "{layer}" in theirs else architecture.layer_prefix + theirs
            sources[f"layers.{i}.{name}"] = whole.replace("{layer}", str(i))
    planned = [PlannedWeight(name, sources[name], tensor) for name, tensor in network.tensors.items()]
    return _with_shared_sources(planned)


def source_shapes(plan: WeightPlan) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the checkpoint's tensors by name."""
    return {part.source: part.source_shape for weight in plan for part in weight.parts}


def _with_shared_sources(plan: WeightPlan) -> WeightPlan:
    """Return `plan` with consecutive rows for matrices of one source, in their order (fused query, key and value)."""
    rows = Counter[str]()
    for weight in plan:
        rows[weight.source] += weight.shape[-1]
    uses = Counter(weight.source for weight in plan)
    first = Counter[str]()
    placed = []
    for weight in plan:
        if uses[weight.source] > 1:
            weight = replace(weight, first_row=first[weight.source], source_rows=rows[weight.source])
            first[weight.source] += weight.shape[-1]
        placed.append(weight)
    return placed


def tensor_records_from_plan(plan: WeightPlan, dtype: Dtype) -> dict[str, TensorRecord]:
    """Return offset and length of every tensor. Tensors follow each other at multiples of WEIGHT_ALIGNMENT.

    Tensors that are not quantized and int4 scales have the type `dtype`. Routers are float32. Scales of int8 and FP8
    are float32, because the graph multiplies the float32 result of a product by them. FP8 matrices are transposed.
    """
    records: dict[str, TensorRecord] = {}
    offset = 0
    for weight in plan:
        tensors: list[tuple[str, StoredDtype, tuple[int, ...]]]
        if weight.quantized is None:
            tensors = [(weight.name, "float32" if weight.tensor.is_float32 else dtype, weight.shape)]
        else:
            *stacked, inputs, outputs = weight.shape
            by_block = weight.quantized == "int4"
            scales = (*stacked, inputs // BLOCK, outputs) if by_block else (*stacked, outputs)
            shape = (*stacked, outputs, inputs) if weight.quantized == "fp8" else weight.shape
            tensors = [
                (weight.name, _STORED[weight.quantized], shape),
                (scale_name(weight.name), dtype if by_block else "float32", scales),
            ]
        for name, item, shape in tensors:
            length = -(-math.prod(shape) * _ITEM_BITS[item] // 8)
            records[name] = TensorRecord(dtype=item, shape=list(shape), offset=offset, length=length)
            offset += -(-length // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
    return records


def check_stored_tensors(plan: WeightPlan, stored: Shapes, *, ignored: Collection[str], source: str) -> None:
    """Raise BadInputError unless `stored` has exactly the planned tensors, in their shapes.

    The names in `ignored` may also be present, and so may the tables of rotary angles of older checkpoints.
    """
    expected = source_shapes(plan)
    for name, shape in expected.items():
        if name not in stored:
            raise BadInputError(
                f"{source} has no tensor {name}",
                expected=f"that tensor, with the shape {list(shape)}",
                remedy="check that config.json belongs to these weights, or copy the checkpoint again",
            )
        if stored[name] != shape:
            raise BadInputError(
                f"{source}: {name} has the shape {list(stored[name])}",
                expected=f"{list(shape)}, from config.json",
                remedy="check that config.json belongs to these weights",
            )
    unknown = set(stored) - set(expected) - set(ignored)
    for name in sorted(unknown):
        if not name.endswith("rotary_emb.inv_freq"):
            raise BadInputError(
                f"{source} has the tensor {name}, which this architecture does not use",
                expected="only the tensors that config.json describes",
                remedy="check that config.json belongs to these weights",
            )
