"""The forward of contract 2 as a torch module: DiffusionGemma's layers for causal rows and rows of a canvas.

Layers have two kinds of attention, and experts with a dense MLP. A canvas reads and returns soft embeddings, and has
drawn tokens. lopa.runtime.sessions.numpy_canvas is the readable reference.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lopa.export.graph.canvas_draw import drawn_tokens
from lopa.export.graph.experts import EXPERTS_OPERATOR, TRACED_DOMAIN, ExpertRouter, Experts
from lopa.export.graph.module import Embedding, Matrix, Norm, statistics_of_logits
from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions
from lopa.runtime.bundle.network import LayerSpec, NetworkSpec, TensorSpec
from lopa.runtime.contract.rotary import RotaryAngles, full_frequencies


def frequencies_of_canvas(dimensions: ModelDimensions) -> dict[str, Tensor]:
    """Return the angles per position of sliding and of full layers, float32 [head size / 2], by initializer."""
    canvas = dimensions.canvas
    assert canvas is not None
    full = full_frequencies(canvas.full_rotary_size, canvas.full_head_size, canvas.full_rope_theta)
    sliding = RotaryAngles(dimensions.head_size, dimensions.rope_theta).inverse_frequencies()
    return {"inverse_frequencies": torch.from_numpy(sliding), "full_frequencies": torch.from_numpy(full)}


@dataclass(frozen=True)
class Kind:
    """Inputs of all layers of one kind of attention; N = requests x branches."""

    cosine: Tensor
    sine: Tensor
    """Cosines and sines of the rotary angles, [N, W, head size / 2]."""
    mask: Tensor
    """Attention mask, bool [N, 1, W, P + W]."""


class CanvasAttention(nn.Module):
    """Attention with norms of query, key and value. A layer without a value projection uses the key's product."""

    norm_type: ClassVar[type[Norm]] = Norm
    rotated: Callable[..., Tensor] = staticmethod(torch.onnx.ops.rotary_embedding)

    def __init__(self, layer: LayerSpec, sizes: ModelDimensions, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.kv_heads, self.head_size = sizes.attention_heads(number)
        self.width = sizes.cache_head_size
        self.query, self.key, self.output = (
            Matrix(layer.tensors, f"attention.{part}", dtype) for part in ("query", "key", "output")
        )
        has_value = "attention.value.weight" in layer.tensors
        self.value = Matrix(layer.tensors, "attention.value", dtype) if has_value else None
        eps = sizes.rms_norm_eps
        self.query_norm = self.norm_type(layer.tensors["attention.query_norm.weight"], eps, dtype)
        self.key_norm = self.norm_type(layer.tensors["attention.key_norm.weight"], eps, dtype)
        self.eps = eps

    def forward(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, kind: Kind, branches: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output [N, W, H] and the new key and value as a cache stores them, [N, 1, W, width] each.

        `past_key` and `past_value` are [R, 1, P, width].
        """
        query = self.rotated(self.query_norm(self._heads(self.query(x))), kind.cosine, kind.sine)
        raw = self._heads(self.key(x))
        value = self.norm_type.plain(raw if self.value is None else self._heads(self.value(x)), self.eps)
        key = self.rotated(self.key_norm(raw), kind.cosine, kind.sine)
        keys, values = (
            torch.cat([self.unpacked(past, branches), new], dim=2)
            for past, new in ((past_key, key), (past_value, value))
        )
        mixed = self.attend(query, keys, values, kind.mask)
        return self.output(mixed.transpose(1, 2).flatten(2)), self._packed(key, kind), self._packed(value, kind)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output [N, heads, W, D], as the query. Keys and values are [N, kv heads, P + W, D]."""
        return functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=1.0, enable_gqa=query.shape[1] != self.kv_heads
        )

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(1, 2)

    def unpacked(self, past: Tensor, branches: int) -> Tensor:
        """Return the cached rows of every branch, [N, kv heads, P, D]."""
        used = past[..., : self.kv_heads * self.head_size].squeeze(1)
        heads = used.reshape(*used.shape[:2], self.kv_heads, self.head_size).transpose(1, 2)
        return heads.unsqueeze(1).expand(-1, branches, -1, -1, -1).flatten(0, 1)

    def _packed(self, rows: Tensor, kind: Kind) -> Tensor:
        """Return [N, kv heads, W, D] as [N, 1, W, width], filled up with zeros."""
        flat = rows.transpose(1, 2).flatten(2)
        zeros = kind.cosine[..., :1] * 0.0 + torch.zeros(self.width - flat.shape[-1], dtype=flat.dtype)
        return (torch.cat([flat, zeros], dim=-1) if zeros.shape[-1] else flat).unsqueeze(1)


class GatedGelu(nn.Module):
    """Gated MLP: down(gelu(gate(x)) * up(x))."""

    def __init__(self, tensors: Mapping[str, TensorSpec], prefix: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate, self.up, self.down = (Matrix(tensors, f"{prefix}.{part}", dtype) for part in ("gate", "up", "down"))

    def forward(self, x: Tensor) -> Tensor:
        """Map [.., H] to [.., H]."""
        product: Tensor = self.down(functional.gelu(self.gate(x), approximate="tanh") * self.up(x))
        return product


class ScaledRouter(ExpertRouter):
    """Router that normalizes its rows itself."""

    norm_type: ClassVar[type[Norm]] = Norm

    def __init__(self, layer: LayerSpec, moe: MixtureOfExperts, eps: float) -> None:
        super().__init__(layer.tensors, moe)
        self.scale = _parameter(layer.tensors["mlp.router.scale"], torch.float32)
        self.eps, self.factor = eps, self.scale.shape[0] ** -0.5

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ExpertRouter.forward returns."""
        return super().forward(self.norm_type.plain(x.float(), self.eps) * self.scale * self.factor)


class _ScaledExperts(Experts):
    """Experts with gelu, and a factor for each. They are one node in the traced graph, as those with silu."""

    def __init__(self, layer: LayerSpec, dtype: torch.dtype) -> None:
        super().__init__(layer.tensors, dtype)
        self.scale = _parameter(layer.tensors["mlp.experts.scale"], torch.float32)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        factors = ((ids.unsqueeze(-1) == torch.arange(len(self.scale))) * self.scale).sum(dim=-1)
        inputs = (x, ids, weights * factors, self.gate.weight, self.up.weight, self.down.weight)
        operator = f"{TRACED_DOMAIN}::{EXPERTS_OPERATOR}"
        return torch.onnx.ops.symbolic(operator, inputs, dtype=x.dtype, shape=x.shape, version=1)


class ParallelMlp(GatedGelu):
    """The dense MLP, with the router and its experts, under their names in a bundle."""

    router_type: ClassVar[type[ScaledRouter]] = ScaledRouter

    def __init__(self, layer: LayerSpec, moe: MixtureOfExperts, eps: float, dtype: torch.dtype) -> None:
        super().__init__(layer.tensors, "mlp", dtype)
        self.router = self.router_type(layer, moe, eps)
        self.experts = _ScaledExperts(layer, dtype)

    def chosen(self, x: Tensor, normal: Tensor) -> Tensor:
        """Return the output of the experts that `x` chooses for the rows `normal`, [N, W, H] each."""
        ids, weights = self.router(x)
        result: Tensor = self.experts(normal, ids, weights)
        return result


class CanvasLayer(nn.Module):
    """Attention, then a dense MLP and experts side by side, all with norms before and behind them."""

    attention_type: ClassVar[type[CanvasAttention]] = CanvasAttention
    mlp_type: ClassVar[type[ParallelMlp]] = ParallelMlp

    def __init__(self, layer: LayerSpec, sizes: ModelDimensions, number: int, dtype: torch.dtype) -> None:
        super().__init__()
        assert sizes.canvas is not None
        assert sizes.moe is not None
        eps, self.is_full = sizes.rms_norm_eps, number in sizes.canvas.full_layers
        names = ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")
        norms = [
            self.attention_type.norm_type(layer.tensors[f"{name}.weight"], eps, dtype)
            for name in (*names, "experts_norm", "experts_post_norm", "post_norm")
        ]
        self.attention_norm, self.attention_post_norm, self.mlp_norm, self.mlp_post_norm = norms[:4]
        self.experts_norm, self.experts_post_norm, self.post_norm = norms[4:]
        self.attention = self.attention_type(layer, sizes, number, dtype)
        self.mlp = self.mlp_type(layer, sizes.moe, eps, dtype)
        self.scalar, self.causal_scalar = (
            _parameter(layer.tensors[name], dtype) for name in ("scalar", "causal_scalar")
        )

    def forward(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, kind: Kind, is_canvas: Tensor, branches: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows [N, W, H] after the layer, and the new key and value. `is_canvas` is [N, W, 1]."""
        attended, key, value = self.attention(self.attention_norm(x), past_key, past_value, kind, branches)
        x = x + self.attention_post_norm(attended)
        dense = self.mlp_post_norm(self.mlp(self.mlp_norm(x)))
        x = x + self.post_norm(dense + self.experts_post_norm(self.mlp.chosen(x, self.experts_norm(x))))
        return x * torch.where(is_canvas, self.scalar, self.causal_scalar), key, value


class _SelfConditioning(GatedGelu):
    def __init__(self, network: NetworkSpec, norm_type: type[Norm], dtype: torch.dtype) -> None:
        super().__init__(network.self_conditioning, "self_conditioning", dtype)
        self.norm = norm_type(
            network.self_conditioning["self_conditioning.norm.weight"], network.dimensions.rms_norm_eps, dtype
        )


class CanvasForward(nn.Module):
    """Forward of the whole model, with inputs and outputs in the order of contract 2."""

    layer_type: ClassVar[type[CanvasLayer]] = CanvasLayer
    inverse_frequencies: Tensor
    full_frequencies: Tensor

    def __init__(self, network: NetworkSpec, *, dtype: torch.dtype, with_logits: bool) -> None:
        super().__init__()
        sizes = network.dimensions
        assert sizes.canvas is not None
        self.dtype, self.with_logits, self.eps = dtype, with_logits, sizes.rms_norm_eps
        self.norm_type = self.layer_type.attention_type.norm_type
        self.cap, self.scale = sizes.canvas.logit_cap, sizes.hidden_size**0.5
        self.embedding = Embedding(network.embedding, dtype)
        self.self_conditioning = _SelfConditioning(network, self.norm_type, dtype)
        self.layers = nn.ModuleDict(
            {str(i): self.layer_type(layer, sizes, i, dtype) for i, layer in enumerate(network.layers)}
        )
        for name, values in frequencies_of_canvas(sizes).items():
            self.register_buffer(name, values, persistent=False)
        self.final_norm = self.norm_type(network.final_norm, self.eps, dtype)
        self.head = Matrix(network.tensors, "head", dtype)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        logits_index: Tensor,
        temperature: Tensor,
        is_canvas: Tensor,
        attention_start: Tensor,
        soft_embeddings: Tensor,
        uniform: Tensor,
        past_key_values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Return the statistics, each layer's new key and value, and logits if configured."""
        requests, branches = position_ids.shape[:2]
        in_canvas = is_canvas.flatten(0, 1).unsqueeze(-1)
        x = self.embedded(input_ids.flatten(0, 1), soft_embeddings.flatten(0, 1), in_canvas)
        kinds = self._kinds(position_ids, window_mask, prefix_mask, attention_start)
        x, window = self.layer_by_layer(x, past_key_values, kinds, in_canvas, branches)
        window = [each.reshape(requests, branches, *each.shape[1:]) for each in window]
        return self.outputs(_sampled_rows(x, logits_index), temperature.reshape(-1, 1, 1, 1), uniform, window)

    def embedded(self, ids: Tensor, soft: Tensor, in_canvas: Tensor) -> Tensor:
        """Return the rows [N, W, H] of `ids` [N, W], in canvases with `soft` [N, W, H]. `in_canvas` is [N, W, 1]."""
        x = self.embedding(ids) * self.scale
        conditioned = self.norm_type.plain(x + self.self_conditioning(self.self_conditioning.norm(soft)), self.eps)
        return torch.where(in_canvas, conditioned, x)

    def layer_by_layer(
        self, x: Tensor, past: list[Tensor], kinds: tuple[Kind, Kind], in_canvas: Tensor, branches: int
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the rows after the layers, and each layer's new key and value. `kinds` are sliding and full."""
        window = []
        for i, layer in enumerate(self.layers.values()):
            x, *new = layer(x, past[2 * i], past[2 * i + 1], kinds[bool(layer.is_full)], in_canvas, branches)
            window += new
        return x, window

    def outputs(self, sampled: Tensor, divisor: Tensor, uniform: Tensor, window: list[Tensor]) -> tuple[Tensor, ...]:
        """Return all outputs, from the sampled rows [.., H] and their temperatures."""
        logits = self.head(self.final_norm(sampled)).float()
        logits = (logits / self.cap).tanh() * self.cap
        statistics = statistics_of_logits(logits, divisor)
        probabilities = (logits / divisor).softmax(dim=-1)
        soft_rows = (probabilities.to(self.dtype) @ self.embedding.weight) * self.scale
        drawn = drawn_tokens(probabilities, uniform)
        found = (*statistics, drawn, soft_rows, *window)
        return (*found, logits) if self.with_logits else found

    def _kinds(
        self, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor, attention_start: Tensor
    ) -> tuple[Kind, Kind]:
        """Return the inputs of sliding and of full layers."""
        requests, branches, width = position_ids.shape
        prefix = prefix_mask.unsqueeze(1).unsqueeze(1).expand(requests, branches, width, prefix_mask.shape[1])
        columns, start = torch.arange(prefix_mask.shape[1], device=prefix_mask.device), attention_start.unsqueeze(-1)
        near = torch.cat([prefix & (columns >= start), window_mask & (position_ids.unsqueeze(2) >= start)], dim=-1)
        everything = torch.cat([prefix, window_mask], dim=-1)
        kinds = []
        for frequencies, mask in ((self.inverse_frequencies, near), (self.full_frequencies, everything)):
            angles = position_ids.flatten(0, 1).unsqueeze(-1).float() * frequencies
            kinds.append(
                Kind(angles.cos().to(self.dtype), angles.sin().to(self.dtype), mask.flatten(0, 1).unsqueeze(1))
            )
        return kinds[0], kinds[1]


def _parameter(tensor: TensorSpec, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(tensor.shape, dtype=dtype))


def _sampled_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows [R, B, Q, H] of `x` [N, W, H] at `index` [R, B, Q]."""
    first = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
    return functional.embedding(index + first.reshape(*index.shape[:2], 1), x.flatten(0, 1))
