"""The contract computed with numpy from the bundle's weights in float32: a readable, slow reference.

Every other backend is compared with this one. Quantized matrices are dequantized. Rows of activations are rounded for
products with FP8 matrices only.

Shapes: R requests, B branches, W query tokens, P cached tokens, Q sampled positions, H hidden size, V vocabulary. D is
the head size, and each of the Hkv key-value heads has G query heads.
"""

from collections.abc import Callable, Mapping

import numpy as np

from lopa.runtime.bundle.manifest import Manifest, MixtureOfExperts
from lopa.runtime.contract import (
    TOP_K,
    Bool,
    Float32,
    Floats,
    Int64,
    Rows,
    Statistics,
    WindowBatch,
    float32_from_stored,
    stored_dtype,
    stored_from_float32,
)
from lopa.runtime.contract.float8 import rounded_rows
from lopa.runtime.contract.rotary import RotaryAngles
from lopa.runtime.sessions.prefix_cache import Prefix


class NumpyForward:
    """One forward, computed step by step."""

    def __init__(self, weights: Mapping[str, Floats], manifest: Manifest) -> None:
        self._weights = weights
        self._sizes = manifest.dimensions
        self._cache_type = stored_dtype(manifest.dtype)
        self._with_logits = manifest.with_logits
        self._fp8 = {name for name, record in manifest.tensors.items() if record.dtype == "float8e4m3fn"}

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the decoder checks for non-finite statistics
    def run(self, batch: WindowBatch, prefix: Prefix) -> tuple[Statistics, tuple[Rows, ...]]:
        """Run one forward. See contract.WindowBatch and contract.Statistics for the shapes."""
        sizes = self._sizes
        cos, sin = rotation(batch.position_ids, sizes.rotary_size, sizes.rope_theta)
        mask = attention_mask(prefix.mask, batch.window_mask)
        x: Float32 = self._weight("embedding.weight")[batch.input_ids]  # [R, B, W, H]
        new_rows: list[Rows] = []
        for i in range(sizes.layers):
            normal = self._normal(f"layers.{i}.attention_norm", x)
            query = self._heads(f"layers.{i}.attention.query", normal, sizes.heads)
            key = self._heads(f"layers.{i}.attention.key", normal, sizes.kv_heads)
            value = self._heads(f"layers.{i}.attention.value", normal, sizes.kv_heads)
            if sizes.qk_norm:
                query = self._normal(f"layers.{i}.attention.query_norm", query)
                key = self._normal(f"layers.{i}.attention.key_norm", key)
            query, key = rotated(query, cos, sin), rotated(key, cos, sin)
            # Round the window's rows to the precision of the cache before attending to them.
            rows = (stored_from_float32(key, self._cache_type), stored_from_float32(value, self._cache_type))
            new_rows += rows
            attended = attention(query, prefix.arrays[2 * i : 2 * i + 2], rows, mask)
            x = x + self._product(attended, f"layers.{i}.attention.output.weight")
            normal = self._normal(f"layers.{i}.mlp_norm", x)
            is_sparse = sizes.moe is not None and i not in sizes.moe.dense_layers
            x = x + (self._experts if is_sparse else self._mlp)(f"layers.{i}.mlp", normal)
        sampled = np.take_along_axis(x, batch.logits_index[..., None], axis=2)  # [R, B, Q, H]
        logits = self._product(self._normal("final_norm", sampled), "head.weight")  # [R, B, Q, V]
        statistics = statistics_from_logits(logits, batch.temperature, keep_logits=self._with_logits)
        return statistics, tuple(new_rows)

    def forget_prefix(self) -> None:
        """Do nothing, because a run keeps no reference to its prefix."""

    def close(self) -> None:
        """Unmap the weights."""
        self._weights = {}

    def _weight(self, name: str) -> Float32:
        return np.asarray(self._weights[name], np.float32)

    def _product(self, x: Float32, name: str, matrix: Float32 | None = None) -> Float32:
        """Return the product of rows and the matrix `name`, or one expert's `matrix` of it."""
        matrix = self._weight(name) if matrix is None else matrix
        if name not in self._fp8:
            return product(x, matrix)
        rounded, scales = rounded_rows(x)
        return product(rounded, matrix) * scales

    def _normal(self, name: str, x: Float32) -> Float32:
        return rms_norm(x, self._weight(f"{name}.weight"), self._sizes.rms_norm_eps)

    def _heads(self, name: str, x: Float32, heads: int) -> Float32:
        """Project [R, B, W, H] and split into [R, B, heads, W, D]."""
        projected = self._product(x, f"{name}.weight")
        if self._sizes.qkv_bias:
            projected = projected + self._weight(f"{name}.bias")
        return projected.reshape(*x.shape[:3], heads, self._sizes.head_size).swapaxes(2, 3)

    def _mlp(self, name: str, x: Float32) -> Float32:
        """Return the gated MLP of the rows [.., H]."""
        return gated_mlp(x, lambda rows, part: self._product(rows, f"{name}.{part}.weight"))

    def _experts(self, name: str, x: Float32) -> Float32:
        """Return the mixture of experts of the rows [.., H]."""
        moe = self._sizes.moe
        assert moe is not None
        bias = self._weight(f"{name}.router.bias") if moe.bias else np.float32(0)
        rows = x.reshape(-1, x.shape[-1])
        weights = expert_weights(product(rows, self._weight(f"{name}.router.weight")), bias, moe)  # [rows, E]
        names = {part: f"{name}.experts.{part}.weight" for part in ("gate", "up", "down")}
        matrices = {part: self._weight(name) for part, name in names.items()}
        total: Float32 = np.zeros_like(rows)
        expert = 0

        def multiplied(x: Float32, part: str) -> Float32:
            return self._product(x, names[part], matrices[part][expert])

        for expert in np.flatnonzero(weights.any(axis=0)).tolist():
            chosen = np.flatnonzero(weights[:, expert])
            output = gated_mlp(rows[chosen], multiplied)
            total[chosen] += weights[chosen, expert, None] * output
        chosen_experts: Float32 = total.reshape(x.shape)
        return chosen_experts + self._mlp(f"{name}.shared", x) if moe.shared_size else chosen_experts


def gated_mlp(x: Float32, multiplied: Callable[[Float32, str], Float32]) -> Float32:
    """Return down(silu(gate(x)) * up(x)) of the rows [.., H]. `multiplied` has products with a part's matrix."""
    return multiplied(silu(multiplied(x, "gate")) * multiplied(x, "up"), "down")


def expert_weights(logits: Float32, bias: Float32 | np.float32, moe: MixtureOfExperts) -> Float32:
    """Return the weight of each expert for each row, [rows, E], 0 for experts that are not chosen.

    `logits` [rows, E] are the router's. The `bias` [E] changes the choice only.
    """
    if moe.score == "sigmoid":
        scores: Float32 = np.float32(0.5) + np.float32(0.5) * np.tanh(logits * np.float32(0.5))
    else:
        scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
    ranked = scores + bias
    if moe.groups > 1:
        groups = ranked.reshape(len(ranked), moe.groups, -1)
        best_two = np.sort(groups, axis=-1)[..., -2:].sum(axis=-1)
        is_open = _largest(best_two, moe.groups_per_token)
        ranked = np.where(is_open[..., None], groups, -np.inf).reshape(ranked.shape).astype(np.float32)
    weights = np.where(_largest(ranked, moe.experts_per_token), scores, np.float32(0))
    if moe.normalize:
        weights /= weights.sum(axis=-1, keepdims=True) + np.float32(1e-20)
    return weights * np.float32(moe.scale)


def _largest(values: Float32, count: int) -> Bool:
    """Return True for the `count` largest values of each row [rows, n], the first ones among equal values."""
    result = np.zeros(values.shape, np.bool_)
    np.put_along_axis(result, np.argsort(-values, axis=-1, kind="stable")[:, :count], values=True, axis=-1)
    return result


def product(a: Float32, b: Float32) -> Float32:
    """Return the matrix product of the last two axes: [.., n, m] and [.., m, k] to [.., n, k]."""
    result: Float32 = np.matmul(a, b)
    return result


def rms_norm(x: Float32, weight: Float32, eps: float) -> Float32:
    """Return `x` [.., n] divided by its root mean square, times `weight` [n]."""
    mean_square: Float32 = np.mean(x * x, axis=-1, keepdims=True)
    normal: Float32 = x / np.sqrt(mean_square + np.float32(eps)) * weight
    return normal


def silu(x: Float32) -> Float32:
    """Return x * sigmoid(x), written with tanh, which cannot overflow."""
    sigmoid: Float32 = np.float32(0.5) + np.float32(0.5) * np.tanh(x * np.float32(0.5))
    return x * sigmoid


def rotation(position_ids: Int64, size: int, theta: float) -> tuple[Float32, Float32]:
    """Return cosine and sine [R, B, 1, W, size/2] of every position. The 1 is the head axis."""
    return RotaryAngles(size, theta).cosines_and_sines(position_ids[:, :, None])


def rotated(x: Float32, cos: Float32, sin: Float32) -> Float32:
    """Apply RoPE to the leading channels of [R, B, heads, W, D], twice as many as `cos` has.

    Element j of their first half pairs with element j of the second half. The other channels stay unchanged.
    """
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def attention_mask(prefix_mask: Bool, window_mask: Bool) -> Bool:
    """Return the mask of every window row, [R, B, 1, 1, W, P + W]. The ones are the Hkv and G axes."""
    requests, branches, width, _ = window_mask.shape
    prefix = np.broadcast_to(prefix_mask[:, None, None, :], (requests, branches, width, prefix_mask.shape[1]))
    return np.concatenate([prefix, window_mask], axis=-1)[:, :, None, None]


def attention(
    query: Float32, prefix: tuple[Rows, ...], window: tuple[Rows, ...], mask: Bool, *, divisor: float | None = None
) -> Float32:
    """Return the attention of the window rows over prefix and window, [R, B, W, heads * D].

    Scores are divided by `divisor`, by default the root of the head size.

    `query` is [R, B, heads, W, D]. `prefix` holds key and value [R, Hkv, P, D], shared by all branches. `window` holds
    key and value [R, B, Hkv, W, D]. A row without visible keys gets zeros.
    """
    requests, branches, heads, width, head_size = query.shape
    prefix_key, prefix_value = (float32_from_stored(part)[:, None, :, None] for part in prefix)  # [R, 1, Hkv, 1, P, D]
    key, value = (float32_from_stored(part)[:, :, :, None] for part in window)  # [R, B, Hkv, 1, W, D]
    prefix_rows = prefix_key.shape[-2]
    grouped = query.reshape(requests, branches, key.shape[2], -1, width, head_size)  # [R, B, Hkv, G, W, D]
    products = [product(grouped, part.swapaxes(-1, -2)) for part in (prefix_key, key)]
    scores: Float32 = np.concatenate(products, axis=-1) / np.float32(
        divisor or head_size**0.5
    )  # [R, B, Hkv, G, W, P + W]
    weights = masked_softmax(scores, mask)
    mixed = product(weights[..., :prefix_rows], prefix_value) + product(weights[..., prefix_rows:], value)
    rows_first = mixed.reshape(requests, branches, heads, width, head_size).swapaxes(2, 3)
    return rows_first.reshape(requests, branches, width, -1)


def masked_softmax(scores: Float32, mask: Bool) -> Float32:
    """Return the softmax over the last axis of the entries where `mask` is true, and 0 elsewhere.

    A row without true entries is all zeros.
    """
    largest = np.max(scores, axis=-1, keepdims=True, where=mask, initial=np.finfo(np.float32).min)
    weights: Float32 = np.exp(np.where(mask, scores - largest, -np.inf))
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), np.finfo(np.float32).tiny)
    return weights


def statistics_from_logits(logits: Float32, temperature: Float32, *, keep_logits: bool) -> Statistics:
    """Return the statistics of logits [R, B, Q, V] divided by `temperature` [R]."""
    tempered = logits / temperature[:, None, None, None]
    shifted = tempered - tempered.max(axis=-1, keepdims=True)
    logprobs = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    # A stable sort of the negated values keeps ties in id order.
    topk_ids = np.argsort(-logprobs, axis=-1, kind="stable")[..., :TOP_K]
    return Statistics(
        topk_ids=topk_ids,
        topk_logprobs=np.take_along_axis(logprobs, topk_ids, axis=-1),
        entropy=-(np.exp(logprobs) * logprobs).sum(axis=-1),
        logits=logits if keep_logits else None,
    )
