"""The contract's forward as a readable torch module: layers of Qwen2, Qwen3 and Llama without a causal mask.

Sparse layers have a mixture of experts (lopa.export.graph.experts) in place of the MLP.

The module is traced, and it runs. Matrices are stored [inputs, outputs], so that a product in the traced graph is one
MatMul without a Transpose.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from lopa.export.graph.experts import ExpertRouter, Experts
from lopa.runtime.bundle.manifest import MixtureOfExperts, ModelDimensions
from lopa.runtime.bundle.network import LayerSpec, NetworkSpec, TensorSpec
from lopa.runtime.contract import TOP_K
from lopa.runtime.contract.model_part import ModelPart, whole_model


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs that all layers of one forward share; N = requests x branches."""

    cosine: Tensor
    """Cosine of each row's rotary angles, [N, W, rotary size / 2]."""
    sine: Tensor
    """Sine of each row's rotary angles, [N, W, rotary size / 2]."""
    mask: Tensor
    """Attention mask, bool [N, 1, W, P + W]. Columns of the prefix precede columns of the window."""
    branches: int
    """Branches per request (B), the number of copies of its prefix."""


class Matrix(nn.Module):
    """Product x @ weight, plus an optional bias. The weight is [inputs, outputs]."""

    def __init__(self, tensors: Mapping[str, TensorSpec], name: str, dtype: torch.dtype) -> None:
        """Create the parameters. `tensors` has the weight as "NAME.weight", and the bias, if any, as "NAME.bias"."""
        super().__init__()
        self.weight = _parameter(tensors[f"{name}.weight"], dtype)
        self.bias = _parameter(tensors[f"{name}.bias"], dtype) if f"{name}.bias" in tensors else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        product = x @ self.weight
        return product if self.bias is None else product + self.bias


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis."""

    def __init__(self, tensor: TensorSpec, eps: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _parameter(tensor, dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [..., size]."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)

    @staticmethod
    def plain(x: Tensor, eps: float) -> Tensor:
        """Normalize [..., size] without a weight."""
        return functional.rms_norm(x, x.shape[-1:], torch.ones(x.shape[-1], dtype=x.dtype, device=x.device), eps)


class Embedding(nn.Module):
    """Lookup of rows of `weight` [V, H] by token id."""

    def __init__(self, tensor: TensorSpec, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = _parameter(tensor, dtype)

    def forward(self, ids: Tensor) -> Tensor:
        """Map int64 [...] to [..., H]."""
        return functional.embedding(ids, self.weight)


class Attention(nn.Module):
    """Grouped-query attention of the window over the committed prefix and itself.

    Biases of query, key and value, and norms of query and key of every head, are optional.
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

    def forward(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, shared: AttentionInputs
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the attention's output [N, W, H] and the window's key and value, [N, Hkv, W, D] each.

        `x` is [N, W, H]; `past_key` and `past_value` are [R, Hkv, P, D].
        """
        query = self.rotate(self.query_norm(self._heads(self.query(x))), shared)
        key = self.rotate(self.key_norm(self._heads(self.key(x))), shared)
        value = self._heads(self.value(x))
        keys = torch.cat([self.repeat_for_branches(past_key, shared.branches), key], dim=2)
        values = torch.cat([self.repeat_for_branches(past_value, shared.branches), value], dim=2)
        attended = self.attend(query, keys, values, shared.mask)
        output: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return output, key, value

    def repeat_for_branches(self, past: Tensor, branches: int) -> Tensor:
        """Repeat each request's prefix for its branches: [R, Hkv, P, D] to [R * B, Hkv, P, D]."""
        return past.unsqueeze(1).expand(-1, branches, -1, -1, -1).flatten(0, 1)

    def rotate(self, x: Tensor, shared: AttentionInputs) -> Tensor:
        """Apply rotary positions to the leading channels of [N, heads, W, D]. The others stay unchanged."""
        size = 2 * shared.cosine.shape[-1]
        if size == self.head_size:
            return self.rotate_all(x, shared)
        return torch.cat([self.rotate_all(x[..., :size], shared), x[..., size:]], dim=-1)

    def rotate_all(self, x: Tensor, shared: AttentionInputs) -> Tensor:
        """Apply rotary positions to [N, heads, W, size], pairing the first half of the channels with the second."""
        return torch.onnx.ops.rotary_embedding(x, shared.cosine, shared.sine)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output [N, heads, W, D].

        The query has the same shape. Keys and values are [N, Hkv, P + W, D], and the mask is boolean.
        """
        grouped = query.shape[1] != keys.shape[1]  # torch's exporter rejects enable_gqa for equal numbers of heads
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)

    def _heads(self, x: Tensor) -> Tensor:
        """Split the channels into heads: [N, W, heads * D] to [N, heads, W, D]."""
        return x.reshape(*x.shape[:2], -1, self.head_size).transpose(1, 2)


class GatedMlp(nn.Module):
    """Gated MLP: down(silu(gate(x)) * up(x))."""

    def __init__(self, layer: LayerSpec, dtype: torch.dtype, prefix: str = "mlp") -> None:
        """Create the parameters of the matrices "PREFIX.gate", "PREFIX.up" and "PREFIX.down"."""
        super().__init__()
        self.gate = Matrix(layer.tensors, f"{prefix}.gate", dtype)
        self.up = Matrix(layer.tensors, f"{prefix}.up", dtype)
        self.down = Matrix(layer.tensors, f"{prefix}.down", dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, W, H] to [N, W, H]."""
        product: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return product


class SparseMlp(nn.Module):
    """Mixture of experts: the weighted sum of the experts that a router chooses for each row, plus a shared expert."""

    router_type: ClassVar[type[ExpertRouter]] = ExpertRouter

    def __init__(self, layer: LayerSpec, moe: MixtureOfExperts, dtype: torch.dtype) -> None:
        super().__init__()
        self.router = self.router_type(layer.tensors, moe)
        self.experts = Experts(layer.tensors, dtype)
        self.shared = GatedMlp(layer, dtype, "mlp.shared") if moe.shared_size else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [N, W, H] to [N, W, H]."""
        chosen: Tensor = self.experts(x, *self.router(x))
        return chosen if self.shared is None else chosen + self.shared(x)


class Layer(nn.Module):
    """Attention and MLP, each on a normalized copy of its input, with residual connections."""

    attention_type: ClassVar[type[Attention]] = Attention
    norm_type: ClassVar[type[Norm]] = Norm
    sparse_type: ClassVar[type[SparseMlp]] = SparseMlp

    def __init__(self, layer: LayerSpec, dimensions: ModelDimensions, dtype: torch.dtype) -> None:
        super().__init__()
        eps = dimensions.rms_norm_eps
        self.attention_norm = self.norm_type(layer.tensors["attention_norm.weight"], eps, dtype)
        self.attention = self.attention_type(layer, dimensions, dtype, self.norm_type)
        self.mlp_norm = self.norm_type(layer.tensors["mlp_norm.weight"], eps, dtype)
        if layer.kind == "sparse":
            assert dimensions.moe is not None  # only networks with experts have sparse layers
            self.mlp: nn.Module = self.sparse_type(layer, dimensions.moe, dtype)
        else:
            self.mlp = GatedMlp(layer, dtype)

    def forward(
        self, x: Tensor, past_key: Tensor, past_value: Tensor, shared: AttentionInputs
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return Attention.forward's results. The rows are two summands of shape [N, W, H]."""
        attended, key, value = self.attention(self.attention_norm(x), past_key, past_value, shared)
        x = x + attended
        return x, self.mlp(self.mlp_norm(x)), key, value


class _Layers(nn.Module):
    """Layers of a part of the model, and the embedding in the first part.

    Weights have their names in the whole model.
    """

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
        """Return the two parts of the rows after the layers, [N, W, H] each, and each layer's new key and value.

        `source` is ids [R, B, W], or hidden rows [2, R, B, W, H].
        """
        requests, branches = position_ids.shape[:2]
        shared = self._shared_inputs(position_ids, window_mask, prefix_mask)
        if self.embedding is not None:
            x, added = self.embedding(source.flatten(0, 1)), None
        else:
            x, added = (part.flatten(0, 1).to(self.dtype) for part in (source[0], source[1]))
        x, added, window = self.layer_by_layer(x, added, past, shared)
        return x, added, [new.reshape(requests, branches, *new.shape[1:]) for new in window]

    def layer_by_layer(
        self, x: Tensor, added: Tensor | None, past: list[Tensor], shared: AttentionInputs
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Run the layers. Return the two parts of the rows after them, and each layer's new key and value.

        The parts are [N, W, H] each, new keys and values [N, Hkv, W, D].
        """
        window = []
        for i, layer in enumerate(self.layers.values()):
            x = x if added is None else x + added
            x, added, key, value = layer(x, past[2 * i], past[2 * i + 1], shared)
            window += [key, value]
        assert added is not None  # a part has at least one layer
        return x, added, window

    def _shared_inputs(self, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor) -> AttentionInputs:
        requests, branches, width = position_ids.shape
        angles = position_ids.flatten(0, 1).unsqueeze(-1).float() * self.inverse_frequencies
        prefix = prefix_mask.unsqueeze(1).unsqueeze(1).expand(requests, branches, width, prefix_mask.shape[1])
        mask = torch.cat([prefix, window_mask], dim=-1).flatten(0, 1).unsqueeze(1)
        return AttentionInputs(angles.cos().to(self.dtype), angles.sin().to(self.dtype), mask, branches)


class HiddenForward(_Layers):
    """Forward of a part without the head. Inputs and outputs have the order of lopa.runtime.contract.model_part."""

    def forward(
        self,
        source: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        past_key_values: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Return hidden rows, float32 [2, R, B, W, H], then each layer's new key and value.

        The next part adds the two hidden rows. They are float32 in every dtype, so that results stay bit-equal to the
        whole model. ONNX Runtime's CPU provider computes float16 graphs in float32 and removes pairs of casts to
        float16 and back. It also chooses the type of a norm from its neighbouring nodes.
        """
        x, added, window = self.through_layers(source, position_ids, window_mask, prefix_mask, past_key_values)
        hidden = torch.stack([x.float(), added.float()])
        return hidden.reshape(2, *position_ids.shape[:2], *x.shape[1:]), *window


class LayersWithHead(_Layers):
    """Layers of the whole model or of its last part, with the head."""

    def __init__(
        self, network: NetworkSpec, *, dtype: torch.dtype, with_logits: bool, part: ModelPart | None = None
    ) -> None:
        """Create the modules of `part`, or of the whole model."""
        super().__init__(network, dtype, part or whole_model(len(network.layers)))
        self.with_logits = with_logits
        self.final_norm = self.layer_type.norm_type(network.final_norm, network.dimensions.rms_norm_eps, dtype)
        self.head = Matrix(network.tensors, "head", dtype)


class ContractForward(LayersWithHead):
    """Forward of the contract, with inputs and outputs in the contract's order, or of the last part, on hidden rows."""

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
        """Return the statistics, each layer's new key and value, and logits if configured, in the contract's shapes."""
        x, added, window = self.through_layers(source, position_ids, window_mask, prefix_mask, past_key_values)
        logits = self.head(self.final_norm(_sampled_rows(x + added, logits_index))).float()
        statistics = statistics_of_logits(logits, temperature.reshape(-1, 1, 1, 1))
        return (*statistics, *window, logits) if self.with_logits else (*statistics, *window)


def _parameter(tensor: TensorSpec, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(tensor.shape, dtype=dtype))


def inverse_frequencies(dimensions: ModelDimensions) -> Tensor:
    """Return the angle per position of every pair of channels that rotate, float32 [rotary size / 2]."""
    exponents = torch.arange(0, dimensions.rotary_size, 2, dtype=torch.int64).float() / dimensions.rotary_size
    return 1.0 / (dimensions.rope_theta**exponents)


def statistics_of_logits(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return topk_ids, topk_logprobs [.., K] and entropy [..] of float32 logits [.., V] divided by `temperature`."""
    z = logits / temperature
    top, ids = torch.topk(z, TOP_K, dim=-1)
    largest = top.narrow(-1, 0, 1)
    above = z - largest
    weights = above.exp()
    total = weights.sum(dim=-1, keepdim=True)
    log_total = total.log()
    logprobs = top - largest - log_total
    entropy = log_total - (weights * above).sum(dim=-1, keepdim=True) / total
    return ids, logprobs, entropy.squeeze(-1)


def _sampled_rows(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows [R, B, Q, H] of `x` [N, W, H] at `index`, int64 [R, B, Q], so that the head computes only these.

    The index is not multiplied by a size. Engines keep sizes on the host, so every forward would copy the size to the
    device. ONNX Runtime cannot capture a CUDA graph of such a model.
    """
    first = torch.arange(0, x.shape[0] * x.shape[1], x.shape[1], device=x.device)
    return functional.embedding(index + first.reshape(*index.shape[:2], 1), x.flatten(0, 1))
