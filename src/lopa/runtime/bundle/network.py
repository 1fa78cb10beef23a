"""Specification of a bundle's network: its layers in order, with name, shape and role of every tensor.

This is the only definition of shapes. It is used by the exporter, `lopa.export.verify`, the numpy session and the cost
model in `lopa.bench.forward.work`. Layers may differ, because the kind of a layer defines its computation.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import msgspec

from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions

EMBEDDING, HEAD = "embedding.weight", "head.weight"


@dataclass(frozen=True)
class TensorSpec:
    """Shape and role of one tensor."""

    shape: tuple[int, ...]
    """Shape in a bundle. A matrix is [inputs, outputs]; leading axes stack several of one size."""
    role: Literal["embedding", "matrix", "bias", "norm"]
    """Use in the network: a matrix is multiplied with rows, and an embedding is looked up by row."""
    row_share: float = 1.0
    """Fraction of a matrix that one row uses. It is below 1 for stacked experts."""
    is_float32: bool = False
    """True if the tensor is float32 in every bundle. Rounding a router would change which experts compute a row."""

    def share_of_rows(self, rows: int) -> float:
        """Return the expected fraction of the tensor that `rows` rows use together, if they choose independently."""
        return 1.0 - (1.0 - self.row_share) ** rows

    @property
    def row_operations(self) -> float:
        """Floating-point operations of one row's product with a matrix, or 0 for any other tensor. Addition and
        multiplication count as two.
        """
        return 2 * math.prod(self.shape) * self.row_share if self.role == "matrix" else 0.0


@dataclass(frozen=True)
class LayerSpec:
    """Kind and tensors of one layer."""

    kind: str
    """Layer type: "dense" is attention and a gated MLP, "sparse" is attention and a mixture of experts. "parallel" is
    attention, then both side by side."""
    tensors: Mapping[str, TensorSpec]
    """Tensors in file order, by name in a bundle without the prefix "layers.N."."""


@dataclass(frozen=True)
class NetworkSpec:
    """The whole network."""

    dimensions: ModelDimensions
    """Sizes that shapes do not determine: heads, positions, rotary base and epsilon."""
    embedding: TensorSpec
    layers: tuple[LayerSpec, ...]
    final_norm: TensorSpec
    head: TensorSpec
    self_conditioning: Mapping[str, TensorSpec] = field(default_factory=dict)
    """Tensors of the network that reads the soft embeddings of a canvas, by name in a bundle; empty without one."""

    @cached_property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor by its name in a bundle, in file order."""
        layers = enumerate(self.layers)
        return {
            EMBEDDING: self.embedding,
            **self.self_conditioning,
            **{f"layers.{i}.{name}": tensor for i, layer in layers for name, tensor in layer.tensors.items()},
            "final_norm.weight": self.final_norm,
            HEAD: self.head,
        }


def network_from_dimensions(dimensions: ModelDimensions) -> NetworkSpec:
    """Return the network with these sizes. Layers of one kind have the same shape."""
    hidden, vocabulary = dimensions.hidden_size, dimensions.vocab_size
    if dimensions.canvas is not None:
        return _canvas_network(dimensions)
    dense, moe = _dense_layer(dimensions), dimensions.moe
    sparse = dense if moe is None else _sparse_layer(dimensions, moe)
    dense_layers = range(dimensions.layers) if moe is None else moe.dense_layers
    return NetworkSpec(
        dimensions,
        embedding=TensorSpec((vocabulary, hidden), "embedding"),
        layers=tuple(dense if i in dense_layers else sparse for i in range(dimensions.layers)),
        final_norm=TensorSpec((hidden,), "norm"),
        head=TensorSpec((hidden, vocabulary), "matrix"),
    )


def _canvas_network(sizes: ModelDimensions) -> NetworkSpec:
    hidden, vocabulary = sizes.hidden_size, sizes.vocab_size
    return NetworkSpec(
        sizes,
        embedding=TensorSpec((vocabulary, hidden), "embedding"),
        layers=tuple(_parallel_layer(sizes, layer) for layer in range(sizes.layers)),
        final_norm=TensorSpec((hidden,), "norm"),
        head=TensorSpec((hidden, vocabulary), "matrix"),
        self_conditioning={
            "self_conditioning.norm.weight": TensorSpec((hidden,), "norm"),
            **_gated_mlp("self_conditioning", hidden, sizes.intermediate_size),
        },
    )


def _parallel_layer(sizes: ModelDimensions, layer: int) -> LayerSpec:
    """Return a layer of DiffusionGemma. Full layers have no value projection: the key's product has both uses."""
    assert sizes.canvas is not None
    assert sizes.moe is not None  # checked in the manifest
    hidden, (kv_heads, head_size) = sizes.hidden_size, sizes.attention_heads(layer)
    tensors = _attention(msgspec.structs.replace(sizes, kv_heads=kv_heads, head_size=head_size))
    if layer in sizes.canvas.full_layers:
        del tensors["attention.value.weight"]
    experts = _sparse_layer(sizes, sizes.moe).tensors
    tensors |= {name: experts[name] for name in experts if name.startswith("mlp")} | {
        **_gated_mlp("mlp", hidden, sizes.intermediate_size),
        "mlp.router.scale": TensorSpec((hidden,), "norm", is_float32=True),
        "mlp.experts.scale": TensorSpec((sizes.moe.experts,), "norm", is_float32=True),
    }
    norms = ("attention_post_norm", "mlp_post_norm", "experts_norm", "experts_post_norm", "post_norm")
    tensors |= {f"{name}.weight": TensorSpec((hidden,), "norm") for name in norms}
    return LayerSpec("parallel", tensors | dict.fromkeys(("scalar", "causal_scalar"), TensorSpec((1,), "norm")))


def _dense_layer(sizes: ModelDimensions) -> LayerSpec:
    mlp = _gated_mlp("mlp", sizes.hidden_size, sizes.intermediate_size)
    return LayerSpec("dense", {**_attention(sizes), "mlp_norm.weight": TensorSpec((sizes.hidden_size,), "norm"), **mlp})


def _sparse_layer(sizes: ModelDimensions, moe: MixtureOfExperts) -> LayerSpec:
    hidden, share = sizes.hidden_size, moe.experts_per_token / moe.experts
    tensors = {**_attention(sizes), "mlp_norm.weight": TensorSpec((hidden,), "norm")}
    tensors["mlp.router.weight"] = TensorSpec((hidden, moe.experts), "matrix", is_float32=True)
    if moe.bias:
        tensors["mlp.router.bias"] = TensorSpec((moe.experts,), "bias", is_float32=True)
    for name, matrix in _gated_mlp("mlp.experts", hidden, moe.expert_size).items():
        tensors[name] = TensorSpec((moe.experts, *matrix.shape), "matrix", share)
    return LayerSpec("sparse", tensors | (_gated_mlp("mlp.shared", hidden, moe.shared_size) if moe.shared_size else {}))


def _gated_mlp(prefix: str, hidden: int, inner: int) -> dict[str, TensorSpec]:
    return {
        f"{prefix}.gate.weight": TensorSpec((hidden, inner), "matrix"),
        f"{prefix}.up.weight": TensorSpec((hidden, inner), "matrix"),
        f"{prefix}.down.weight": TensorSpec((inner, hidden), "matrix"),
    }


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
