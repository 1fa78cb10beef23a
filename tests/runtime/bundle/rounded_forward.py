"""The forward of a bfloat16 graph on the CPU: float32 arithmetic, each result rounded to bfloat16.

A device may round more or less often than the graph's nodes: it fuses nodes, or keeps parts of attention in bfloat16.
`Rounding` has these choices, so that tests can measure what rounding alone changes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import Bool, Float32, Floats, Rows, Statistics, WindowBatch
from lopa.runtime.contract.forward import float32_from_stored, stored_dtype, stored_from_float32
from lopa.runtime.sessions.numpy_session import (
    attention_mask,
    masked_softmax,
    product,
    rms_norm,
    rotated,
    rotation,
    silu,
    statistics_from_logits,
)
from lopa.runtime.sessions.prefix_cache import Prefix

BFLOAT16 = stored_dtype("bfloat16")


def rounded(x: Floats) -> Float32:
    """Return `x` rounded to bfloat16."""
    return float32_from_stored(stored_from_float32(np.asarray(x, np.float32), BFLOAT16))


def exact(x: Float32) -> Float32:
    """Return `x`."""
    return x


@dataclass(frozen=True)
class Rounding:
    """The places at which a device rounds, beside the results that the graph stores in any case."""

    fused: bool = False
    """True if a product and its bias, a residual and its norm, and the gated activation are one kernel."""
    scores: bool = False
    """True if attention scores are stored in bfloat16."""
    weights: bool = False
    """True if attention weights are stored in bfloat16."""
    norm_first: bool = False
    """True if a norm rounds before its weight."""
    rotary_products: bool = False
    """True if the products of the rotation are rounded before they are added."""
    split_products: bool = False
    """True if a product of matrices adds two rounded halves."""


ROUNDINGS = tuple(
    Rounding(fused, scores, weights, more, more, more)
    for fused in (False, True)
    for scores, weights in ((False, False), (False, True), (True, True))
    for more in (False, True)
)


@dataclass(frozen=True)
class Mistakes:
    """Mistakes of a wrong graph."""

    score_scale: float = 1.0
    eps: float = 1.0
    """Factor of the norms' eps."""
    theta: float = 1.0
    """Factor of the base of the rotation."""
    heads: tuple[int, ...] | None = None
    """Order of the query heads of one layer."""
    mask: Callable[[Bool], Bool] | None = None
    """Function of the window's mask [R, B, W, W]."""
    layer: int | None = None
    """The layer that has the mistakes; None for all."""


class RoundedForward:
    """One forward in bfloat16."""

    def __init__(
        self, weights: Mapping[str, Floats], manifest: Manifest, rounding: Rounding, mistakes: Mistakes = Mistakes()
    ) -> None:
        self._weights, self._sizes = weights, manifest.dimensions
        self._rounding, self._mistakes = rounding, mistakes

    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        sizes, between = self._sizes, exact if self._rounding.fused else rounded
        x = self._weight("embedding.weight")[batch.input_ids]
        new_rows: list[Rows] = []
        for i in range(sizes.layers):
            wrong = self._mistakes if self._mistakes.layer in (None, i) else Mistakes()
            name = f"layers.{i}."
            window_mask = batch.window_mask if wrong.mask is None else wrong.mask(batch.window_mask)
            mask = attention_mask(prefix.mask, window_mask)
            angles = rotation(batch.position_ids, sizes.rotary_size, sizes.rope_theta * wrong.theta)
            cos, sin = map(rounded, angles)
            normal = self._normal(f"{name}attention_norm", x, wrong)
            query, key, value = (
                self._heads(f"{name}attention.{part}", normal, heads)
                for part, heads in (("query", sizes.heads), ("key", sizes.kv_heads), ("value", sizes.kv_heads))
            )
            query, key = self._rotated(query, cos, sin), self._rotated(key, cos, sin)
            if wrong.heads is not None:
                query = query[:, :, list(wrong.heads)]
            rows = stored_from_float32(key, BFLOAT16), stored_from_float32(value, BFLOAT16)
            new_rows += rows
            attended = self._attention(query, prefix.arrays[2 * i : 2 * i + 2], (key, value), mask, wrong)
            x = rounded(x + between(self._product(attended, f"{name}attention.output")))
            normal = self._normal(f"{name}mlp_norm", x, wrong)
            gate, up = (rounded(self._product(normal, f"{name}mlp.{part}")) for part in ("gate", "up"))
            x = rounded(x + between(self._product(rounded(self._silu(gate) * up), f"{name}mlp.down")))
        sampled = np.take_along_axis(x, batch.logits_index[..., None], axis=2)
        logits = rounded(self._product(self._normal("final_norm", sampled, self._mistakes), "head"))
        return statistics_from_logits(logits, batch.temperature, keep_logits=False), tuple(new_rows)

    def forget_prefix(self) -> None:
        """Do nothing, because a run keeps no reference to its prefix."""

    def close(self) -> None:
        """Do nothing."""

    def _weight(self, name: str) -> Float32:
        return np.asarray(self._weights[name], np.float32)

    def _normal(self, name: str, x: Float32, wrong: Mistakes) -> Float32:
        weight, eps = self._weight(f"{name}.weight"), self._sizes.rms_norm_eps * wrong.eps
        if self._rounding.norm_first:
            return rounded(rounded(rms_norm(x, np.ones_like(weight), eps)) * weight)
        return rounded(rms_norm(x, weight, eps))

    def _product(self, x: Float32, name: str) -> Float32:
        weight = self._weight(f"{name}.weight")
        if not self._rounding.split_products:
            return product(x, weight)
        half = len(weight) // 2
        return rounded(product(x[..., :half], weight[:half])) + rounded(product(x[..., half:], weight[half:]))

    def _silu(self, x: Float32) -> Float32:
        if self._rounding.fused:
            return silu(x)
        return rounded(x * rounded(np.float32(1) / (np.float32(1) + np.exp(-x))))

    def _heads(self, name: str, x: Float32, heads: int) -> Float32:
        projected = self._product(x, name)
        if self._sizes.qkv_bias:
            between = exact if self._rounding.fused else rounded
            projected = between(projected) + self._weight(f"{name}.bias")
        return rounded(projected).reshape(*x.shape[:3], heads, self._sizes.head_size).swapaxes(2, 3)

    def _rotated(self, x: Float32, cos: Float32, sin: Float32) -> Float32:
        if not self._rounding.rotary_products:
            return rounded(rotated(x, cos, sin))
        zero = np.float32(0)
        return rounded(rounded(rotated(x, cos, sin * zero)) + rounded(rotated(x, cos * zero, sin)))

    def _attention(
        self,
        query: Float32,
        prefix: tuple[Rows, ...],
        window: tuple[Float32, Float32],
        mask: Bool,
        wrong: Mistakes,
    ) -> Float32:
        requests, branches, heads, width, size = query.shape
        early = tuple(float32_from_stored(part)[:, None, :, None] for part in prefix)
        late = tuple(part[:, :, :, None] for part in window)
        grouped = query.reshape(requests, branches, window[0].shape[2], -1, width, size)
        scores = np.concatenate([product(grouped, part[0].swapaxes(-1, -2)) for part in (early, late)], axis=-1)
        scores = scores * np.float32(wrong.score_scale / size**0.5)
        weights = masked_softmax(rounded(scores) if self._rounding.scores else scores, mask)
        weights = rounded(weights) if self._rounding.weights else weights
        kept = early[1].shape[-2]
        mixed = rounded(product(weights[..., :kept], early[1]) + product(weights[..., kept:], late[1]))
        return (
            mixed.reshape(requests, branches, heads, width, size).swapaxes(2, 3).reshape(requests, branches, width, -1)
        )
