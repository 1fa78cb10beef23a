"""The network in plain PyTorch eager mode, as one would write it from the published code: windows on one cache.

Serves as the other side of the speed benchmarks and shares no forward code with lopa.export. Every call concatenates
the cached keys and values with the window's, as transformers' DynamicCache does, runs SDPA with an additive mask and
computes the logits of every window row. It does not know blocks or statistics.

Beside the published code it is spared three costs: the adapter is merged (there LoRA runs unmerged beside every
matrix; lopa.bench.speed.adapter_apart does so), dtype and device never change on the way, and there is no model wrapper
around the layers.

Shapes: N windows, W window rows, C cached rows, H hidden size, D head size, V vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from lopa.export.source import Source, source_from_checkpoint
from lopa.export.weights.plan import PlannedWeight
from lopa.runtime.bundle.manifest import ModelDimensions

KeyValue = tuple[Tensor, Tensor]
"""One layer's keys and values, each [1, Hkv, rows, D] in a cache and [N, Hkv, rows, D] of a window."""


class RmsNorm(nn.Module):
    """Divides by the root mean square, in float32 whatever the type, as published."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]"""
        exact = x.float()
        return self.weight * (exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention over the cache and the window."""

    def __init__(self, sizes: ModelDimensions) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_size = sizes.heads, sizes.kv_heads, sizes.head_size
        self.query = nn.Linear(sizes.hidden_size, sizes.heads * sizes.head_size, bias=sizes.qkv_bias)
        self.key = nn.Linear(sizes.hidden_size, sizes.kv_heads * sizes.head_size, bias=sizes.qkv_bias)
        self.value = nn.Linear(sizes.hidden_size, sizes.kv_heads * sizes.head_size, bias=sizes.qkv_bias)
        self.output = nn.Linear(sizes.heads * sizes.head_size, sizes.hidden_size, bias=False)
        self.query_norm = RmsNorm(sizes.head_size, sizes.rms_norm_eps) if sizes.qk_norm else nn.Identity()
        self.key_norm = RmsNorm(sizes.head_size, sizes.rms_norm_eps) if sizes.qk_norm else nn.Identity()

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        """[N, W, H] -> [N, W, H] and the windows' own rows; `mask` [N or 1, 1, W, C + W] is added to the scores."""
        number, window, _ = x.shape
        query = self.query_norm(self.query(x).view(number, window, self.heads, self.head_size)).transpose(1, 2)
        key = self.key_norm(self.key(x).view(number, window, self.kv_heads, self.head_size)).transpose(1, 2)
        query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
        value = self.value(x).view(number, window, self.kv_heads, self.head_size).transpose(1, 2)
        keys = key if past is None else torch.cat([past[0].expand(number, -1, -1, -1), key], dim=2)
        values = value if past is None else torch.cat([past[1].expand(number, -1, -1, -1), value], dim=2)
        grouped = not query.is_cuda
        if not grouped:  # fused CUDA kernels take either a mask or grouped heads; the published code repeats them, too
            keys, values = (repeated_heads(part, self.heads // self.kv_heads) for part in (keys, values))
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)
        return self.output(mixed.transpose(1, 2).reshape(number, window, -1)), (key, value)


class Mlp(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, sizes: ModelDimensions) -> None:
        super().__init__()
        self.gate = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.up = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.down = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N, W, H] -> [N, W, H]"""
        hidden: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return hidden


class Layer(nn.Module):
    """Attention and MLP, each on a normalized copy that is added back."""

    def __init__(self, sizes: ModelDimensions) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.attention = Attention(sizes)
        self.mlp_norm = RmsNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = Mlp(sizes)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue]:
        """As Attention.forward."""
        attended, rows = self.attention(self.attention_norm(x), cos, sin, mask, past)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), rows


class EagerModel(nn.Module):
    """Token ids in, logits of every row out. The parameters are named as a bundle's tensors are."""

    def __init__(self, sizes: ModelDimensions) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocab_size, sizes.hidden_size)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.final_norm = RmsNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        # Not a buffer: it stays float32 when the parameters are rounded.
        self.frequencies = frequencies_from_dimensions(sizes)

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, past: list[KeyValue] | None
    ) -> tuple[Tensor, list[KeyValue]]:
        """Ids and positions [N, W], `mask` [N or 1, 1, W, C + W]; gives logits [N, W, V] and the windows' rows."""
        x = self.embedding(ids)
        cos, sin = rotation_from_positions(positions, self.frequencies, x.dtype)
        rows = []
        for i, layer in enumerate(self.layers):
            x, new = layer(x, cos, sin, mask, None if past is None else past[i])
            rows.append(new)
        return self.head(self.final_norm(x)), rows


def eager_model_from_checkpoint(
    checkpoint: Path, lora: Path | None, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> EagerModel:
    """The model of a checkpoint folder with its adapter merged (in float32), in `dtype` on `device`.

    Raises BadInputError as an export of the same folders would.
    """
    source = source_from_checkpoint(checkpoint, lora)
    weights = {each.name: merged_weight(source, each, device).to(dtype) for each in source.planned}
    return _model_from_weights(source.config.dimensions, weights, device)


def compiled_model(model: EagerModel, sizes: ModelDimensions) -> EagerModel:
    """The same network on the same weights, every layer compiled by torch.compile for each size that it meets.

    Layers share their code, so that a size is compiled once; what is outside of them stays eager.
    """
    twin = _model_from_weights(sizes, model.state_dict(), model.embedding.weight.device)
    for layer in twin.layers:
        layer.compile(dynamic=False)
    return twin


def merged_weight(source: Source, planned: PlannedWeight, device: str) -> Tensor:
    """One tensor of `source` in float32 on `device`; matrices [outputs, inputs] as nn.Linear has them."""
    stored = source.adapter.replaced.get(planned.source, source.stored[planned.source])
    weight = stored.read().to(device).float()
    product = source.adapter.products.get(planned.source)
    if product is None:
        return weight
    return weight + product.scale * (product.up.read().to(device).float() @ product.down.read().to(device).float())


def frequencies_from_dimensions(sizes: ModelDimensions) -> Tensor:
    """[D / 2], float32 on the CPU (also where parameters are made on "meta"): how fast every pair of channels turns."""
    exponents = torch.arange(0, sizes.head_size, 2, device="cpu").float() / sizes.head_size
    return 1.0 / (sizes.rope_theta**exponents)


def rotation_from_positions(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines [N, 1, W, D] of positions [N, W]."""
    angles = positions[:, None, :, None].float() * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def repeated_heads(rows: Tensor, times: int) -> Tensor:
    """[N, Hkv, rows, D] -> [N, Hkv * times, rows, D]: every head as often as query heads share it, in a row."""
    return rows.repeat_interleave(times, dim=1)


def _model_from_weights(
    sizes: ModelDimensions, weights: Mapping[str, Tensor], device: str | torch.device
) -> EagerModel:
    """A model that holds `weights`, which are on `device`, without a copy."""
    with torch.device("meta"):
        model = EagerModel(sizes)
    model.load_state_dict(weights, assign=True)
    model.frequencies = model.frequencies.to(device)
    return model.eval()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[N, heads, W, D], the first half of the channels paired with the second."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
