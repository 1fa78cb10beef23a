"""The forward of the engine contract as a readable torch module: Qwen2-shaped layers without a causal mask.

Used for tracing, and runnable. Does not know where weights come from, what a bundle is, or any decoding rule.
Matrices are stored [inputs, outputs], so that a product in the traced graph is one MatMul without a Transpose.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lopa.runtime.contract import TOP_K
from lopa.runtime.manifest import ModelDimensions


@dataclass(frozen=True)
class Rows:
    """What every layer of one forward shares; N = requests x branches."""

    cosine: Tensor
    """[N, W, D / 2], of each row's rotary angles."""
    sine: Tensor
    """[N, W, D / 2]"""
    mask: Tensor
    """bool [N, 1, W, P + W]: the columns of the prefix, then those of the window."""
    branches: int
    """B: how often each request's prefix is repeated."""


class Matrix(nn.Module):
    """x @ weight (+ bias), with weight [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(outputs, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, dtype=dtype))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]"""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Embedding(nn.Module):
    """One row of `weight` [V, H] for every token id."""

    def __init__(self, dimensions: ModelDimensions, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dimensions.vocab_size, dimensions.hidden_size, dtype=dtype))

    def forward(self, ids: Tensor) -> Tensor:
        """Int64 [...] -> [..., H]"""
        return functional.embedding(ids, self.weight)


class Attention(nn.Module):
    """Grouped-query attention of the window over the committed prefix and itself."""

    def __init__(self, dimensions: ModelDimensions, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, self.head_size = dimensions.hidden_size, dimensions.head_size
        self.query = Matrix(hidden, dimensions.heads * self.head_size, bias=True, dtype=dtype)
        self.key = Matrix(hidden, dimensions.kv_heads * self.head_size, bias=True, dtype=dtype)
        self.value = Matrix(hidden, dimensions.kv_heads * self.head_size, bias=True, dtype=dtype)
        self.output = Matrix(dimensions.heads * self.head_size, hidden, bias=False, dtype=dtype)

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """[N, W, H] and two [R, Hkv, P, D] -> [N, W, H] and the window's own key and value, [N, Hkv, W, D]."""
        query = self.rotated(self._heads(self.query(x)), rows)
        key = self.rotated(self._heads(self.key(x)), rows)
        value = self._heads(self.value(x))
        keys = torch.cat([self.of_branches(past_key, rows.branches), key], dim=2)
        values = torch.cat([self.of_branches(past_value, rows.branches), value], dim=2)
        attended = self.attended(query, keys, values, rows.mask)
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output, key, value

    def of_branches(self, past: Tensor, branches: int) -> Tensor:
        """[R, Hkv, P, D] -> [R * B, Hkv, P, D]"""
        return past.unsqueeze(1).expand(-1, branches, -1, -1, -1).flatten(0, 1)

    def rotated(self, x: Tensor, rows: Rows) -> Tensor:
        """[N, heads, W, D], the first half of the channels paired with the second."""
        return torch.onnx.ops.rotary_embedding(x, rows.cosine, rows.sine)

    def attended(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """[N, heads, W, D], twice [N, Hkv, P + W, D] and Rows.mask -> [N, heads, W, D]"""
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)

    def _heads(self, x: Tensor) -> Tensor:
        """[N, W, heads * D] -> [N, heads, W, D]"""
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, dimensions: ModelDimensions, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner = dimensions.hidden_size, dimensions.intermediate_size
        self.gate = Matrix(hidden, inner, bias=False, dtype=dtype)
        self.up = Matrix(hidden, inner, bias=False, dtype=dtype)
        self.down = Matrix(inner, hidden, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[N, W, H] -> [N, W, H]"""
        product: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return product


class Layer(nn.Module):
    """Attention and MLP, each on a normalized copy that is added back."""

    attention_type: ClassVar[type[Attention]] = Attention
    norm_type: ClassVar[type[Norm]] = Norm

    def __init__(self, dimensions: ModelDimensions, dtype: torch.dtype) -> None:
        super().__init__()
        self.attention_norm = self.norm_type(dimensions.hidden_size, dimensions.rms_norm_eps, dtype)
        self.attention = self.attention_type(dimensions, dtype)
        self.mlp_norm = self.norm_type(dimensions.hidden_size, dimensions.rms_norm_eps, dtype)
        self.mlp = GatedMlp(dimensions, dtype)

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """As Attention.forward."""
        attended, key, value = self.attention(self.attention_norm(x), past_key, past_value, rows)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), key, value


class ContractForward(nn.Module):
    """One forward of the contract: inputs and outputs in the order of lopa.runtime.contract."""

    layer_type: ClassVar[type[Layer]] = Layer
    inverse_frequencies: Tensor

    def __init__(self, dimensions: ModelDimensions, *, dtype: torch.dtype, with_logits: bool) -> None:
        super().__init__()
        self.with_logits = with_logits
        self.embedding = Embedding(dimensions, dtype)
        self.layers = nn.ModuleList(self.layer_type(dimensions, dtype) for _ in range(dimensions.layers))
        self.final_norm = self.layer_type.norm_type(dimensions.hidden_size, dimensions.rms_norm_eps, dtype)
        self.head = Matrix(dimensions.hidden_size, dimensions.vocab_size, bias=False, dtype=dtype)
        self.register_buffer("inverse_frequencies", inverse_frequencies(dimensions), persistent=False)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        logits_index: Tensor,
        temperature: Tensor,
        past_key_values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Shapes as in the contract: the statistics, then each layer's new key and value, then logits if wanted."""
        requests, branches = input_ids.shape[:2]
        rows = self._rows(position_ids, window_mask, prefix_mask)
        x, window = self.layers_forward(self.embedding(input_ids.flatten(0, 1)), past_key_values, rows)
        window = [new.reshape(requests, branches, *new.shape[1:]) for new in window]
        logits = self.head(self.final_norm(_wanted_rows(x, logits_index))).float()
        statistics = statistics_of_logits(logits, temperature.reshape(-1, 1, 1, 1))
        return (*statistics, *window, logits) if self.with_logits else (*statistics, *window)

    def layers_forward(self, x: Tensor, past_key_values: list[Tensor], rows: Rows) -> tuple[Tensor, list[Tensor]]:
        """[N, W, H] through all layers -> [N, W, H] and each layer's new key and value, [N, Hkv, W, D]."""
        window = []
        for i, layer in enumerate(self.layers):
            x, key, value = layer(x, past_key_values[2 * i], past_key_values[2 * i + 1], rows)
            window += [key, value]
        return x, window

    def _rows(self, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor) -> Rows:
        requests, branches, width = position_ids.shape
        angles = position_ids.flatten(0, 1).unsqueeze(-1).float() * self.inverse_frequencies
        prefix = prefix_mask.unsqueeze(1).unsqueeze(1).expand(requests, branches, width, prefix_mask.shape[1])
        mask = torch.cat([prefix, window_mask], dim=-1).flatten(0, 1).unsqueeze(1)
        dtype = self.embedding.weight.dtype
        return Rows(angles.cos().to(dtype), angles.sin().to(dtype), mask, branches)


def inverse_frequencies(dimensions: ModelDimensions) -> Tensor:
    """float32 [D / 2]: the angle per position of every pair of a head's channels."""
    exponents = torch.arange(0, dimensions.head_size, 2, dtype=torch.int64).float() / dimensions.head_size
    return 1.0 / (dimensions.rope_theta**exponents)


def statistics_of_logits(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """float32 [.., V] and a divisor that fits it -> topk_ids, topk_logprobs [.., K] and entropy [..]."""
    z = logits / temperature
    top, ids = torch.topk(z, TOP_K, dim=-1)
    greatest = top.narrow(-1, 0, 1)
    above = z - greatest
    weights = above.exp()
    total = weights.sum(dim=-1, keepdim=True)
    log_total = total.log()
    logprobs = top - greatest - log_total
    entropy = log_total - (weights * above).sum(dim=-1, keepdim=True) / total
    return ids, logprobs, entropy.squeeze(-1)


def _wanted_rows(x: Tensor, index: Tensor) -> Tensor:
    """[N, W, H] and int64 [R, B, Q] -> [R, B, Q, H]: the vocabulary product runs on these rows only."""
    first = torch.arange(x.shape[0], device=x.device) * x.shape[1]
    return functional.embedding(index + first.reshape(*index.shape[:2], 1), x.flatten(0, 1))
