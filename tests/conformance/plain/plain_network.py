"""The networks of the contract in float64 numpy, for one sequence, row by row.

It is written from the published layers (Qwen2, Qwen3, Llama). From the runtime it uses only the names of the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
KeyValues = list[tuple[Array, Array]]
"""Keys and values of each layer, [rows, heads, head size]."""


def rows_of(kept: KeyValues, places: Array) -> KeyValues:
    return [(key[places], value[places]) for key, value in kept]


def joined(one: KeyValues, other: KeyValues) -> KeyValues:
    return [(np.concatenate([a, c]), np.concatenate([b, d])) for (a, b), (c, d) in zip(one, other, strict=True)]


@dataclass(frozen=True)
class Sizes:
    vocabulary: int = 24
    hidden: int = 32
    inner: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 8
    theta: float = 10000.0
    eps: float = 1e-3
    bias: bool = True
    norms: bool = False


class PlainNetwork:
    def __init__(self, sizes: Sizes, weights: Mapping[str, Array]) -> None:
        self.sizes = sizes
        self.weights = {name: np.asarray(weight, np.float64) for name, weight in weights.items()}

    def rows(
        self, tokens: Array, positions: Array, sees: Array, kept: KeyValues | None = None
    ) -> tuple[Array, KeyValues]:
        """Return logits [n, V] of n rows, and their keys and values; `sees` [n, k + n] covers k cached rows and
        these."""
        sizes, weights = self.sizes, self.weights
        x = weights["embedding.weight"][tokens]
        new: KeyValues = []
        for layer in range(sizes.layers):
            name = f"layers.{layer}."
            normal = self._norm(x, weights[name + "attention_norm.weight"])
            parts = {}
            for part, heads in (("query", sizes.heads), ("key", sizes.kv_heads), ("value", sizes.kv_heads)):
                made = normal @ weights[f"{name}attention.{part}.weight"]
                if sizes.bias:
                    made = made + weights[f"{name}attention.{part}.bias"]
                made = made.reshape(len(tokens), heads, sizes.head_size)
                if part != "value":
                    if sizes.norms:
                        made = self._norm(made, weights[f"{name}attention.{part}_norm.weight"])
                    made = self._rotate(made, positions)
                parts[part] = made
            new.append((parts["key"], parts["value"]))
            key, value = new[-1] if kept is None else joined(kept[layer : layer + 1], new[-1:])[0]
            mixed = np.empty((len(tokens), sizes.heads, sizes.head_size))
            for head in range(sizes.heads):
                own = head * sizes.kv_heads // sizes.heads
                scores = parts["query"][:, head] @ key[:, own].T / np.sqrt(sizes.head_size)
                scores = np.where(sees, scores, -np.inf)
                weight = np.exp(scores - scores.max(axis=1, keepdims=True))
                mixed[:, head] = weight / weight.sum(axis=1, keepdims=True) @ value[:, own]
            x = x + mixed.reshape(len(tokens), -1) @ weights[name + "attention.output.weight"]
            normal = self._norm(x, weights[name + "mlp_norm.weight"])
            gate = normal @ weights[name + "mlp.gate.weight"]
            x = (
                x
                + (gate / (1 + np.exp(-gate)) * (normal @ weights[name + "mlp.up.weight"]))
                @ weights[name + "mlp.down.weight"]
            )
        return self._norm(x, weights["final_norm.weight"]) @ weights["head.weight"], new

    def _norm(self, x: Array, weight: Array) -> Array:
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.sizes.eps) * weight

    def _rotate(self, x: Array, positions: Array) -> Array:
        half = self.sizes.head_size // 2
        angles = np.asarray(positions)[:, None, None] / self.sizes.theta ** (np.arange(half) / half)
        first, second = x[..., :half], x[..., half:]
        return np.concatenate(
            [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)],
            axis=-1,
        )


def random_weights(sizes: Sizes, seed: int, *, sharpness: float, mask: int) -> dict[str, Array]:
    """Return random float32 weights, all nonzero except the mask's in the head, which no trained network proposes."""
    rng = np.random.default_rng(seed)
    inner, queries, keys = sizes.inner, sizes.heads * sizes.head_size, sizes.kv_heads * sizes.head_size
    shapes: dict[str, tuple[int, ...]] = {
        "embedding.weight": (sizes.vocabulary, sizes.hidden),
        "final_norm.weight": (sizes.hidden,),
        "head.weight": (sizes.hidden, sizes.vocabulary),
    }
    for layer in range(sizes.layers):
        name = f"layers.{layer}."
        shapes |= {
            name + "attention_norm.weight": (sizes.hidden,),
            name + "attention.output.weight": (queries, sizes.hidden),
            name + "mlp_norm.weight": (sizes.hidden,),
            name + "mlp.gate.weight": (sizes.hidden, inner),
            name + "mlp.up.weight": (sizes.hidden, inner),
            name + "mlp.down.weight": (inner, sizes.hidden),
        }
        for part, outputs in (("query", queries), ("key", keys), ("value", keys)):
            shapes[f"{name}attention.{part}.weight"] = (sizes.hidden, outputs)
            shapes[f"{name}attention.{part}.bias"] = (outputs,)
            shapes[f"{name}attention.{part}_norm.weight"] = (sizes.head_size,)
    made = {name: rng.normal(0, 0.25, shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in made.items():
        if "norm" in name:
            weight[:] = 1 + np.abs(weight)
    made["embedding.weight"] *= 4
    made["head.weight"] *= sharpness
    made["head.weight"][:, mask] = 0
    return {name: weight for name, weight in made.items() if _exists(name, sizes)}


def _exists(name: str, sizes: Sizes) -> bool:
    if name.endswith(".bias"):
        return sizes.bias
    return sizes.norms or not name.endswith(("query_norm.weight", "key_norm.weight", "value_norm.weight"))
