"""The forward of contract 2 (DiffusionGemma) with numpy: one set of layers, causal rows and rows of a canvas.

Causal rows write the cache. Rows of a canvas read the soft embeddings of the step before, and attend to each other in
both directions. Each way has its own scalar per layer. Both may be in one window. Shapes are those of numpy_forward.
"""

import numpy as np

from lopa.runtime.contract import (
    Bool,
    Float32,
    Int64,
    Rows,
    Statistics,
    WindowBatch,
    float32_from_stored,
    stored_from_float32,
)
from lopa.runtime.contract.rotary import RotaryAngles, full_frequencies
from lopa.runtime.sessions.numpy_forward import (
    NumpyForward,
    attention,
    expert_weights,
    product,
    rms_norm,
    rotated,
    statistics_from_logits,
)
from lopa.runtime.sessions.prefix_cache import Prefix


class NumpyCanvasForward(NumpyForward):
    """One forward, computed step by step."""

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")
    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward. See contract.CanvasInputs for the further inputs."""
        sizes, inputs, canvas = self._sizes, batch.canvas, self._sizes.canvas
        assert inputs is not None
        assert canvas is not None
        is_canvas, scale = inputs.is_canvas[..., None], np.float32(sizes.hidden_size**0.5)
        x: Float32 = self._weight("embedding.weight")[batch.input_ids] * scale
        soft = self._normal("self_conditioning.norm", float32_from_stored(inputs.soft_embeddings))
        x = np.where(is_canvas, self._plain_norm(x + self._gated("self_conditioning", soft)), x)
        masks = [attended(batch, prefix.mask, start) for start in (None, inputs.attention_start)]
        new_rows: list[Rows] = []
        for i in range(sizes.layers):
            x = x + self._attention(i, x, batch, prefix, masks[i not in canvas.full_layers], new_rows)
            dense = self._gated(f"layers.{i}.mlp", self._normal(f"layers.{i}.mlp_norm", x))
            chosen = self._chosen(i, x)
            both = self._normal(f"layers.{i}.mlp_post_norm", dense) + self._normal(
                f"layers.{i}.experts_post_norm", chosen
            )
            x = x + self._normal(f"layers.{i}.post_norm", both)
            scalars = (self._weight(f"layers.{i}.{name}") for name in ("scalar", "causal_scalar"))
            x = x * np.where(is_canvas, *scalars)
        sampled = np.take_along_axis(x, batch.logits_index[..., None], axis=2)
        logits = product(self._normal("final_norm", sampled), self._weight("head.weight"))
        cap = np.float32(canvas.logit_cap)
        logits = np.tanh(logits / cap) * cap
        statistics = statistics_from_logits(logits, batch.temperature, keep_logits=self._with_logits)
        probabilities = _softmax(logits / batch.temperature[:, None, None, None])
        statistics = statistics.with_canvas(
            drawn_tokens(probabilities, inputs.uniform),
            stored_from_float32(product(probabilities, self._weight("embedding.weight")) * scale, self._cache_type),
        )
        return statistics, tuple(new_rows)

    def _attention(
        self, i: int, x: Float32, batch: WindowBatch, prefix: Prefix, mask: Bool, new_rows: list[Rows]
    ) -> Float32:
        """Return the attention of layer `i`, and append its new key and value to `new_rows`."""
        sizes, canvas, (kv_heads, head_size) = self._sizes, self._sizes.canvas, self._sizes.attention_heads(i)
        assert canvas is not None
        name, is_full = f"layers.{i}.attention", i in canvas.full_layers
        normal = self._normal(f"{name}_norm", x)

        def heads(part: str, count: int) -> Float32:
            projected = product(normal, self._weight(f"{name}.{part}.weight"))
            return projected.reshape(*x.shape[:3], count, head_size).swapaxes(2, 3)

        query = self._normal(f"{name}.query_norm", heads("query", sizes.heads))
        raw = heads("key", kv_heads)
        value = self._plain_norm(raw if is_full else heads("value", kv_heads))
        if is_full:
            frequencies = full_frequencies(canvas.full_rotary_size, head_size, canvas.full_rope_theta)
        else:
            frequencies = RotaryAngles(head_size, sizes.rope_theta).inverse_frequencies()
        angles = batch.position_ids[:, :, None, :, None].astype(np.float32) * frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        key = rotated(self._normal(f"{name}.key_norm", raw), cos, sin)
        rows = tuple(stored_from_float32(each, self._cache_type) for each in (key, value))
        width = sizes.cache_head_size
        for each in rows:
            flat = each.swapaxes(2, 3).reshape(*x.shape[:3], -1)
            new_rows.append(np.pad(flat, ((0, 0), (0, 0), (0, 0), (0, width - flat.shape[-1])))[:, :, None])
        cached = tuple(
            each[:, 0, :, : kv_heads * head_size].reshape(each.shape[0], -1, kv_heads, head_size).swapaxes(1, 2)
            for each in prefix.arrays[2 * i : 2 * i + 2]
        )
        mixed = attention(rotated(query, cos, sin), cached, rows, mask, divisor=1.0)
        return self._normal(f"{name}_post_norm", product(mixed, self._weight(f"{name}.output.weight")))

    def _chosen(self, i: int, x: Float32) -> Float32:
        """Return the output of the experts of layer `i` for the rows [.., H]."""
        name, moe = f"layers.{i}.mlp", self._sizes.moe
        assert moe is not None
        routed = self._plain_norm(x) * self._weight(f"{name}.router.scale") * np.float32(self._sizes.hidden_size**-0.5)
        logits = product(routed.reshape(-1, x.shape[-1]), self._weight(f"{name}.router.weight"))
        weights = expert_weights(logits, np.float32(0), moe) * self._weight(f"{name}.experts.scale")
        rows = self._normal(f"layers.{i}.experts_norm", x).reshape(-1, x.shape[-1])
        matrices = [self._weight(f"{name}.experts.{part}.weight") for part in ("gate", "up", "down")]
        total: Float32 = np.zeros_like(rows)
        for expert in np.flatnonzero(weights.any(axis=0)):
            own = np.flatnonzero(weights[:, expert])
            total[own] += weights[own, expert, None] * _gated_gelu(rows[own], *(each[expert] for each in matrices))
        return total.reshape(x.shape)

    def _gated(self, name: str, x: Float32) -> Float32:
        return _gated_gelu(x, *(self._weight(f"{name}.{part}.weight") for part in ("gate", "up", "down")))

    def _plain_norm(self, x: Float32) -> Float32:
        """Return the norm without a weight."""
        return rms_norm(x, np.ones(1, np.float32), self._sizes.rms_norm_eps)


def attended(batch: WindowBatch, prefix_mask: Bool, start: Int64 | None) -> Bool:
    """Return the mask of every window row, [R, B, 1, 1, W, P + W]. `start` [R, B, W] is its first position, or None."""
    columns = np.arange(prefix_mask.shape[1])
    window, prefix = (
        batch.window_mask,
        np.broadcast_to(prefix_mask[:, None, None, :], (*batch.input_ids.shape, len(columns))),
    )
    if start is not None:
        prefix = prefix & (columns >= start[..., None])
        window = window & (batch.position_ids[:, :, None, :] >= start[..., None])
    return np.concatenate([prefix, window], axis=-1)[:, :, None, None]


def drawn_tokens(probabilities: Float32, uniform: Float32) -> Int64:
    """Return the first token at which the sum of the probabilities [.., V] exceeds `uniform` [..] of their total."""
    sums = np.cumsum(probabilities, axis=-1, dtype=np.float64)
    reached = np.count_nonzero(sums <= uniform[..., None].astype(np.float64) * sums[..., -1:], axis=-1)
    ids: Int64 = np.minimum(reached, probabilities.shape[-1] - 1)
    return ids


def _softmax(x: Float32) -> Float32:
    weights: Float32 = np.exp(x - x.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _gated_gelu(x: Float32, gate: Float32, up: Float32, down: Float32) -> Float32:
    """Return down(gelu(gate(x)) * up(x)), with the approximation of gelu by tanh."""
    inner = product(x, gate)
    cubic: Float32 = inner * (np.float32(1) + np.float32(0.044715) * inner * inner)
    tanh: Float32 = np.tanh(np.float32(0.7978845608028654) * cubic)
    active: Float32 = np.float32(0.5) * inner * (np.float32(1) + tanh) * product(x, up)
    return product(active, down)
