"""Which tensors a bundle holds, what each is called in the checkpoint, and where each will lie in the weights file.

Knows names and shapes only; no values.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.export.checkpoint.config import CheckpointConfig
from lopa.runtime.bundle.manifest import WEIGHT_ALIGNMENT, ModelDimensions, TensorRecord, scale_name
from lopa.runtime.errors import BadInputError

Dtype = Literal["float32", "float16", "bfloat16"]
IntegerDtype = Literal["int8", "int4"]
ITEM_BITS: dict[Dtype | IntegerDtype, int] = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4}
HEAD_NAME = "head.weight"
BLOCK = 32
"""Inputs that share an int4 scale."""
_BIASES = ("attention.query.bias", "attention.key.bias", "attention.value.bias")
_HEAD_NORMS = ("attention.query_norm.weight", "attention.key_norm.weight")
Shapes = Mapping[str, tuple[int, ...]]
"""Of the tensors of a checkpoint, by name."""


@dataclass(frozen=True)
class PlannedWeight:
    """One tensor of the bundle."""

    name: str
    source: str
    """Its name in the checkpoint."""
    source_shape: tuple[int, ...]
    transposed: bool
    """The checkpoint has [outputs, inputs], the bundle [inputs, outputs]."""
    quantized: IntegerDtype | None = None
    """Written as integers, with its scales as a tensor of their own behind it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in the bundle."""
        return self.source_shape[::-1] if self.transposed else self.source_shape


WeightPlan = Sequence[PlannedWeight]
"""Every tensor of a bundle, in the order in which it is written."""


def weight_plan_from_config(config: CheckpointConfig) -> WeightPlan:
    """The plan of a bundle in floats.

    A tied head is a tensor of its own here, with the embedding as its source.
    """
    sizes, names = config.dimensions, config.architecture
    layer_shapes = _layer_shapes(sizes)
    outer = dict(names.outer_names)
    if config.tied_embeddings:
        outer[HEAD_NAME] = outer["embedding.weight"]
    vocabulary = (sizes.vocab_size, sizes.hidden_size)
    planned = [PlannedWeight("embedding.weight", outer["embedding.weight"], vocabulary, transposed=False)]
    for layer in range(sizes.layers):
        prefix = names.layer_prefix.format(layer=layer)
        for name, shape in layer_shapes.items():
            source = prefix + names.layer_names[name]
            planned.append(PlannedWeight(f"layers.{layer}.{name}", source, shape, transposed=len(shape) == 2))
    planned.append(
        PlannedWeight("final_norm.weight", outer["final_norm.weight"], (sizes.hidden_size,), transposed=False)
    )
    planned.append(PlannedWeight(HEAD_NAME, outer[HEAD_NAME], vocabulary, transposed=True))
    return planned


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
            scales = (weight.shape[1],) if weight.quantized == "int8" else (weight.shape[0] // BLOCK, weight.shape[1])
            scale_dtype: Dtype = "float32" if weight.quantized == "int8" else dtype
            tensors = [(weight.name, weight.quantized, weight.shape), (scale_name(weight.name), scale_dtype, scales)]
        for name, item, shape in tensors:
            length = -(-math.prod(shape) * ITEM_BITS[item] // 8)
            records[name] = TensorRecord(dtype=item, shape=list(shape), offset=offset, length=length)
            offset += -(-length // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
    return records


def check_layer_count(config: CheckpointConfig, stored: Shapes, *, source: str) -> None:
    """Raise BadInputError unless `stored` can have as many layers as the configuration says.

    To be called before anything is made for each layer: the number is a claim, the tensors are there.
    """
    of_each = len(_layer_shapes(config.dimensions))
    most = len(stored) // of_each
    if config.dimensions.layers > most:
        raise BadInputError(
            f"{source} has {len(stored)} tensors for num_hidden_layers = {config.dimensions.layers}",
            expected=f"{of_each} tensors for each layer",
            remedy="check that config.json belongs to these weights, or copy the checkpoint again",
        )


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


def _layer_shapes(sizes: ModelDimensions) -> dict[str, tuple[int, ...]]:
    """Those of a layer that such a network has, by their names in a bundle, in the order in which they are written.

    Shapes are the checkpoint's: matrices are [outputs, inputs] there.
    """
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    queries, keys = sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "attention_norm.weight": (hidden,),
        "attention.query.weight": (queries, hidden),
        "attention.query.bias": (queries,),
        "attention.key.weight": (keys, hidden),
        "attention.key.bias": (keys,),
        "attention.value.weight": (keys, hidden),
        "attention.value.bias": (keys,),
        "attention.query_norm.weight": (sizes.head_size,),
        "attention.key_norm.weight": (sizes.head_size,),
        "attention.output.weight": (hidden, queries),
        "mlp_norm.weight": (hidden,),
        "mlp.gate.weight": (inner, hidden),
        "mlp.up.weight": (inner, hidden),
        "mlp.down.weight": (hidden, inner),
    }
    absent = (() if sizes.qkv_bias else _BIASES) + (() if sizes.qk_norm else _HEAD_NORMS)
    return {name: shape for name, shape in shapes.items() if name not in absent}
