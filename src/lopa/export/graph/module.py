"""The forward of the engine contract as a readable torch module: layers of Qwen2, Qwen3 and Llama, no causal mask.

Used for tracing, and runnable. Does not know where weights come from, what a bundle is, or any decoding rule.
Matrices are stored [inputs, outputs], so that a product in the traced graph is one MatMul without a Transpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import LayerSpec, NetworkSpec, TensorSpec
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.model_part import ModelPart, whole_model


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

    def __init__(self, tensors: Mapping[str, TensorSpec], name: str, dtype: torch.dtype) -> None:
        """`tensors` have the weight as "NAME.weight", and the bias, if there is one, as "NAME.bias"."""
        super().__init__()
        self.weight = _parameter(tensors[f"{name}.weight"], dtype)
        self.bias = _parameter(tensors[f"{name}.bias"], dtype) if f"{name}.bias" in tensors else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]"""
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis."""

    def __init__(self, tensor: TensorSpec, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _parameter(tensor, dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]"""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Embedding(nn.Module):
    """One row of `weight` [V, H] for every token id."""

    def __init__(self, tensor: TensorSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _parameter(tensor, dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Int64 [...] -> [..., H]"""
        return functional.embedding(ids, self.weight)


class Attention(nn.Module):
    """Grouped-query attention of the window over the committed prefix and itself.

    Biases, and norms of every head's query and key, where the layer has them.
    """

    def __init__(
        self, layer: LayerSpec, dimensions: ModelDimensions, dtype: torch.dtype, norm_type: type[Norm]
    ) -> None:
        super().__init__()
        tensors, self.head_size = layer.tensors, dimensions.head_size
        self.query = Matrix(tensors, "attention.query", dtype)
        self.key = Matrix(tensors, "attention.key", dtype)
        self.value = Matrix(tensors, "attention.value", dtype)
        self.output = Matrix(tensors, "attention.output", dtype)
        norms = (tensors.get(f"attention.{part}_norm.weight") for part in ("query", "key"))
        self.query_norm, self.key_norm = (
            nn.Identity() if norm is None else norm_type(norm, dimensions.rms_norm_eps, dtype) for norm in norms
        )

    def forward(self, x: Tensor, past_key: Tensor, past_value: Tensor, rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
        """[N, W, H] and two [R, Hkv, P, D] -> [N, W, H] and the window's own key and value, [N, Hkv, W, D]."""
        query = self.rotated(self.query_norm(self._heads(self.query(x))), rows)
        key = self.rotated(self.key_norm(self._heads(self.key(x))), rows)
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
        grouped = query.shape[1] != keys.shape[1]  # torch's exporter refuses to group heads that are as many
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)

    def _heads(self, x: Tensor) -> Tensor:
        """[N, W, heads * D] -> [N, heads, W, D]"""
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class GatedMlp(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, layer: LayerSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate = Matrix(layer.tensors, "mlp.gate", dtype)
        self.up = Matrix(layer.tensors, "mlp.up", dtype)
        self.down = Matrix(layer.tensors, "mlp.down", dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[N, W, H] -> [N, W, H]"""
        product: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return product


class Layer(nn.Module):
    """Attention and MLP, each on a normalized copy that is added back."""

    attention_type: ClassVar[type[Attention]] = Attention
    norm_type: ClassVar[type[Norm]] = Norm
    mlp_types: ClassVar[Mapping[str, type[nn.Module]]] = {"dense": GatedMlp}
    """Modules of the MLP by the kind of the layer, made of its LayerSpec and a type."""

    def __init__(self, layer: LayerSpec, dimensions: ModelDimensions, dtype: torch.dtype) -> None:
        super().__init__()
        eps = dimensions.rms_norm_eps
        self.attention_norm = self.norm_type(layer.tensors["attention_norm.weight"], eps, dtype)
        self.attention = self.attention_type(layer, dimensions, dtype, self.norm_type)
        self.mlp_norm = self.norm_type(layer.tensors["mlp_norm.weight"], eps, dtype)
        self.mlp = self.mlp_types[layer.kind](layer, dtype)

    def forward(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As Attention.forward, but the rows come out as two parts, [N, W, H] each, whose sum they are."""
        attended, key, value = self.attention(self.attention_norm(x), past_key, past_value, rows)
        x = x + attended
        return x, self.mlp(self.mlp_norm(x)), key, value


class _Layers(nn.Module):
    """The layers of a part, with the embedding if it is the first; weights by their names in the whole model."""

    layer_type: ClassVar[type[Layer]] = Layer
    inverse_frequencies: Tensor

    def __init__(self, network: NetworkSpec, dtype: torch.dtype, part: ModelPart) -> None:
        super().__init__()
        dimensions, layers = network.dimensions, network.layers
        self.dtype = dtype
        self.kv_heads = dimensions.kv_heads
        self.embedding = Embedding(network.embedding, dtype) if part.is_first else None
        self.layers = nn.ModuleDict(
            {str(i): self.layer_type(layers[i], dimensions, dtype) for i in range(part.first, part.end)}
        )
        self.register_buffer("inverse_frequencies", inverse_frequencies(dimensions), persistent=False)

    def through_layers(
        self, source: Tensor, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor, past: list[Tensor]
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """From ids [R, B, W], or hidden rows [2, R, B, W, H], to the two parts of the rows behind the layers.

        These are [N, W, H] each; then each layer's new key and value.
        """
        requests, branches = position_ids.shape[:2]
        rows = self._rows(position_ids, window_mask, prefix_mask)
        if self.embedding is not None:
            x, added = self.embedding(source.flatten(0, 1)), None
        else:
            x, added = (part.flatten(0, 1).to(self.dtype) for part in (source[0], source[1]))
        x, added, window = self.layer_by_layer(x, added, past, rows)
        return x, added, [new.reshape(requests, branches, *new.shape[1:]) for new in window]

    def layer_by_layer(
        self, x: Tensor, added: Tensor | None, past: list[Tensor], rows: Rows
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """From the parts of the rows in front of the layers to those behind them, and new keys and values.

        The parts are [N, W, H] each, new keys and values [N, Hkv, W, D].
        """
        window = []
        for i, layer in enumerate(self.layers.values()):
            x = x if added is None else x + added
            x, added, key, value = layer(x, past[2 * i], past[2 * i + 1], rows)
            window += [key, value]
        assert added is not None  # a part has at least one layer
        return x, added, window

    def _rows(self, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor) -> Rows:
        requests, branches, width = position_ids.shape
        angles = position_ids.flatten(0, 1).unsqueeze(-1).float() * self.inverse_frequencies
        prefix = prefix_mask.unsqueeze(1).unsqueeze(1).expand(requests, branches, width, prefix_mask.shape[1])
        mask = torch.cat([prefix, window_mask], dim=-1).flatten(0, 1).unsqueeze(1)
        return Rows(angles.cos().to(self.dtype), angles.sin().to(self.dtype), mask, branches)


class HiddenForward(_Layers):
    """A part without the head: inputs and outputs in the order of lopa.runtime.contract.model_part."""

    def forward(
        self,
        source: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        past_key_values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Hidden rows, float32 [2, R, B, W, H], then each layer's new key and value.

        The last sum is left to the next part and the rows are float32 in every type, for the sake of the same bits: an
        engine without float16 arithmetic (ONNX Runtime's CPU) sums in float32 and leaves out casts to float16 and back,
        where it finds both; and it computes a norm in the type that suits what is before and behind it.
        """
        x, added, window = self.through_layers(source, position_ids, window_mask, prefix_mask, past_key_values)
        hidden = torch.stack([x.float(), added.float()])
        return hidden.reshape(2, *position_ids.shape[:2], *x.shape[1:]), *window


class LayersWithHead(_Layers):
    """The layers of a whole model, or of its last part, and what makes statistics of their rows."""

    def __init__(
        self, network: NetworkSpec, *, dtype: torch.dtype, with_logits: bool, part: ModelPart | None = None
    ) -> None:
        """`part` None: the whole model."""
        super().__init__(network, dtype, part or whole_model(len(network.layers)))
        self.with_logits = with_logits
        self.final_norm = self.layer_type.norm_type(network.final_norm, network.dimensions.rms_norm_eps, dtype)
        self.head = Matrix(network.tensors, "head", dtype)


class ContractForward(LayersWithHead):
    """One forward of the contract, inputs and outputs in its order; or the last part of one, on hidden rows."""

    def forward(
        self,
        source: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        logits_index: Tensor,
        temperature: Tensor,
        past_key_values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Shapes as in the contract: the statistics, then each layer's new key and value, then logits if wanted."""
        x, added, window = self.through_layers(source, position_ids, window_mask, prefix_mask, past_key_values)
        logits = self.head(self.final_norm(_wanted_rows(x + added, logits_index))).float()
        statistics = statistics_of_logits(logits, temperature.reshape(-1, 1, 1, 1))
        return (*statistics, *window, logits) if self.with_logits else (*statistics, *window)


def _parameter(tensor: TensorSpec, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(tensor.shape, dtype=dtype))


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
    """[N, W, H] and int64 [R, B, Q] -> [R, B, Q, H]: the vocabulary product runs on these rows only.

    No product of an array with a size: engines keep sizes on the host, so that every forward would copy one to the
    device, and ONNX Runtime captures no CUDA graph of a model that does.
    """
    first = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
    return functional.embedding(index + first.reshape(*index.shape[:2], 1), x.flatten(0, 1))
