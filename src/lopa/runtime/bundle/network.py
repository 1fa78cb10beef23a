"""The network of a bundle as data: its layers in order, and the name, shape and role of every tensor.

Shapes are written here only. The weight plan, the torch modules, the numpy session, verify and the work models read
them. Layers may differ from each other: the kind of a layer says how it is computed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from lopa.runtime.bundle.manifest import ModelDimensions

EMBEDDING, HEAD = "embedding.weight", "head.weight"


@dataclass(frozen=True)
class TensorSpec:
    """Shape and use of one tensor."""

    shape: tuple[int, ...]
    """Sizes in a bundle. A matrix is [inputs, outputs]; several of one size may be stacked on axes before these."""
    role: Literal["embedding", "matrix", "bias", "norm"]
    """A matrix is a factor of a product with rows. Of an embedding, rows are looked up."""
    row_share: float = 1.0
    """Share of a matrix that one row is multiplied with: below 1 for stacked experts, of which a row uses some."""

    @property
    def row_operations(self) -> float:
        """Operations of one row's product with a matrix, a multiplication and an addition being two; else 0."""
        return 2 * math.prod(self.shape) * self.row_share if self.role == "matrix" else 0.0


@dataclass(frozen=True)
class LayerSpec:
    """One layer."""

    kind: str
    """The way it is computed. "dense": attention and a gated MLP."""
    tensors: Mapping[str, TensorSpec]
    """Tensors by their names in a bundle without "layers.N.", in the order in which they are written."""


@dataclass(frozen=True)
class NetworkSpec:
    """The whole network."""

    dimensions: ModelDimensions
    """Sizes that no shape tells: heads, positions, rotary base and epsilon."""
    embedding: TensorSpec
    layers: tuple[LayerSpec, ...]
    final_norm: TensorSpec
    head: TensorSpec

    @cached_property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor by its name in a bundle, in the order in which they are written."""
        layers = enumerate(self.layers)
        return {
            EMBEDDING: self.embedding,
            **{f"layers.{i}.{name}": tensor for i, layer in layers for name, tensor in layer.tensors.items()},
            "final_norm.weight": self.final_norm,
            HEAD: self.head,
        }


def network_from_dimensions(dimensions: ModelDimensions) -> NetworkSpec:
    """Return the network with these sizes, whose layers are all dense and of one shape."""
    hidden, vocabulary = dimensions.hidden_size, dimensions.vocab_size
    return NetworkSpec(
        dimensions,
        embedding=TensorSpec((vocabulary, hidden), "embedding"),
        layers=(_dense_layer(dimensions),) * dimensions.layers,
        final_norm=TensorSpec((hidden,), "norm"),
        head=TensorSpec((hidden, vocabulary), "matrix"),
    )


def _dense_layer(sizes: ModelDimensions) -> LayerSpec:
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    return LayerSpec(
        "dense",
        {
            **_attention(sizes),
            "mlp_norm.weight": TensorSpec((hidden,), "norm"),
            "mlp.gate.weight": TensorSpec((hidden, inner), "matrix"),
            "mlp.up.weight": TensorSpec((hidden, inner), "matrix"),
            "mlp.down.weight": TensorSpec((inner, hidden), "matrix"),
        },
    )


def _attention(sizes: ModelDimensions) -> dict[str, TensorSpec]:
    hidden, queries, keys = sizes.hidden_size, sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    tensors = {"attention_norm.weight": TensorSpec((hidden,), "norm")}
    for part, outputs in (("query", queries), ("key", keys), ("value", keys)):
        tensors[f"attention.{part}.weight"] = TensorSpec((hidden, outputs), "matrix")
        if sizes.qkv_bias:
            tensors[f"attention.{part}.bias"] = TensorSpec((outputs,), "bias")
    if sizes.qk_norm:
        for part in ("query", "key"):
            tensors[f"attention.{part}_norm.weight"] = TensorSpec((sizes.head_size,), "norm")
    return {**tensors, "attention.output.weight": TensorSpec((queries, hidden), "matrix")}
