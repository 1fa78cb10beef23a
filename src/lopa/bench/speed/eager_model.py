"""Network of transformers in eager mode, with a cache that the caller manages.

It is the baseline of the speed benchmarks. It shares no forward code with the exported graph. Every call concatenates
cached and new keys and values, runs SDPA with an additive mask, and computes the logits of every window row. It has no
notion of blocks or statistics.

It avoids three costs of the published code. The adapter is merged, whereas the published code computes LoRA separately
for every matrix (lopa.bench.speed.adapter_apart). Data type and device never change. No model wrapper surrounds the
layers.

Shapes: N windows, W window rows, C cached rows, H hidden size, D head size, V vocabulary.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lopa.export.source import ExportSource, source_from_checkpoint
from lopa.export.verify.reference_model import empty_network, load_weights
from lopa.export.verify.reference_names import parameter_in_network
from lopa.export.weights.plan import PlannedWeight
from lopa.runtime.errors import BadInputError

KeyValue = tuple[Tensor, Tensor]
"""One layer's keys and values: [1, Hkv, rows, D] in a cache, and [N, Hkv, rows, D] in a window."""


class EagerModel(nn.Module):
    """Network that maps token ids to the logits of every row."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights and of the cached rows."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights and of the cached rows."""
        device: torch.device = self.network.device
        return device

    @property
    def layers(self) -> Any:
        """Decoder layers of the transformers network."""
        return self.network.model.layers

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, past: list[KeyValue] | None
    ) -> tuple[Tensor, list[KeyValue]]:
        """Map ids and positions [N, W] and `mask` [N or 1, 1, W, C + W] to logits [N, W, V] and the windows' rows."""
        model = self.network.model
        x = model.embed_tokens(ids)
        rotation = model.rotary_emb(x, positions)
        rows = []
        for i, layer in enumerate(model.layers):
            x, new = run_layer(layer, x, rotation, mask, None if past is None else past[i])
            rows.append(new)
        return self.network.lm_head(model.norm(x)), rows


class _WindowCache:
    """Cache for one call of one layer. It stores the window's rows separately from the cached rows."""

    def __init__(self, past: KeyValue | None) -> None:
        self._past = past
        self.new: KeyValue | None = None

    def update(self, key: Tensor, value: Tensor, *_: object) -> KeyValue:
        """Return the cached rows followed by the window's."""
        self.new = key, value
        if self._past is None:
            return key, value
        cached = (part.expand(len(key), -1, -1, -1) for part in self._past)
        keys, values = (torch.cat(parts, dim=2) for parts in zip(cached, (key, value), strict=True))
        return keys, values


def run_layer(
    layer: Any, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, past: KeyValue | None
) -> tuple[Tensor, KeyValue]:
    """Return the output of a transformers layer for `x` [N, W, H], and the windows' rows.

    `rotation` comes from the network's rotary embedding. `mask` [N or 1, 1, W, C + W] is added to the scores.
    """
    cache = _WindowCache(past)
    x = layer(x, attention_mask=mask, past_key_values=cache, position_embeddings=rotation)
    assert cache.new is not None
    return x, cache.new


def eager_model_from_checkpoint(
    checkpoint: Path, lora: Path | None, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> EagerModel:
    """Return the model of a checkpoint folder with its adapter merged (in float32), in `dtype` on `device`.

    Raises BadInputError as an export of the same folders does, and for a mixture of experts.
    """
    source = source_from_checkpoint(checkpoint, lora)
    check_dense(source)
    weights = {each.name: merged_weight(source, each, device).to(dtype) for each in source.planned}
    return eager_model_from_weights(source, weights, device)


def eager_model_from_weights(source: ExportSource, weights: Mapping[str, Tensor], device: str) -> EagerModel:
    """Return a model that uses `weights`, by their bundle names and on `device`, without a copy."""
    check_dense(source)
    network = empty_sdpa_network(source)
    names = reference_names(source)
    load_weights(network, {names[name]: tensor for name, tensor in weights.items()}, source=source.checkpoint)
    network.model.rotary_emb.to(device)  # not a parameter, so it stays float32
    return EagerModel(network)


def check_dense(source: ExportSource) -> None:
    """Raise BadInputError for a mixture of experts, whose matrices are stacked or share tensors."""
    if source.config.dimensions.moe is not None:
        raise BadInputError(
            f"{source.checkpoint} is a mixture of experts",
            expected="a dense model: this reader of checkpoints supports no experts",
            remedy="use a dense checkpoint",
        )


def compile_model(model: EagerModel) -> EagerModel:
    """Return the same network and weights with every layer compiled by torch.compile, once per size.

    Layers share their code, so a size is compiled only once. The rest stays eager.
    """
    weights = {id(each): each for each in model.parameters()}
    twin = copy.deepcopy(model, weights)  # deepcopy treats these objects as copied
    for layer in twin.layers:
        layer.self_attn.layer_idx = 0  # layers with another index would be compiled again; each layer has its own cache
        layer.compile(dynamic=False)
    return twin


def empty_sdpa_network(source: ExportSource) -> Any:
    """Return transformers' network of a checkpoint without weights, with SDPA attention.

    Raises BadInputError for a mixture of experts.
    """
    check_dense(source)
    return empty_network(source.config.dimensions, source.config.architecture.name, source.checkpoint, attention="sdpa")


def reference_names(source: ExportSource) -> dict[str, str]:
    """Return transformers' tensor names by bundle name."""
    return {each.name: parameter_in_network(each.name) for each in source.planned}


def merged_weight(source: ExportSource, planned: PlannedWeight, device: str) -> Tensor:
    """Return a tensor of `source` in float32 on `device`. Matrices are [outputs, inputs], as in nn.Linear."""
    stored = source.adapter.replaced.get(planned.source, source.stored[planned.source])
    weight = stored.read().to(device).float()
    product = source.adapter.products.get(planned.source)
    if product is None:
        return weight
    return weight + product.scale * (product.up.read().to(device).float() @ product.down.read().to(device).float())
