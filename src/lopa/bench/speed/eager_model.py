"""transformers' network in eager mode on one cache that the caller keeps: the other side of the speed benchmarks.

It shares no forward code with the exported graph. Every call concatenates the cached keys and values with the window's,
runs SDPA with an additive mask and computes the logits of every window row. It does not know blocks or statistics.

Beside the published code it is spared three costs: the adapter is merged (there LoRA runs unmerged beside every
matrix; lopa.bench.speed.adapter_apart does so), dtype and device never change on the way, and there is no model wrapper
around the layers.

Shapes: N windows, W window rows, C cached rows, H hidden size, D head size, V vocabulary.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lopa.export.source import Source, source_from_checkpoint
from lopa.export.verify.reference_model import empty_network, load_weights
from lopa.export.verify.reference_names import names_of_architecture
from lopa.export.weights.plan import PlannedWeight

KeyValue = tuple[Tensor, Tensor]
"""One layer's keys and values, each [1, Hkv, rows, D] in a cache and [N, Hkv, rows, D] of a window."""


class EagerModel(nn.Module):
    """Token ids in, logits of every row out."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights and of the cached rows."""
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        """Device of the weights and of the cached rows."""
        device: torch.device = self.network.device
        return device

    @property
    def layers(self) -> Any:
        """Transformers' decoder layers."""
        return self.network.model.layers

    def forward(
        self, ids: Tensor, positions: Tensor, mask: Tensor, past: list[KeyValue] | None
    ) -> tuple[Tensor, list[KeyValue]]:
        """Ids and positions [N, W], `mask` [N or 1, 1, W, C + W]; gives logits [N, W, V] and the windows' rows."""
        model = self.network.model
        x = model.embed_tokens(ids)
        rotation = model.rotary_emb(x, positions)
        rows = []
        for i, layer in enumerate(model.layers):
            x, new = run_layer(layer, x, rotation, mask, None if past is None else past[i])
            rows.append(new)
        return self.network.lm_head(model.norm(x)), rows


class _WindowCache:
    """Cache of one call of one layer: leaves the cached rows as they are and keeps the window's apart."""

    def __init__(self, past: KeyValue | None) -> None:
        self._past = past
        self.new: KeyValue | None = None

    def update(self, key: Tensor, value: Tensor, *_: object) -> KeyValue:
        """Return the cached rows with the window's behind them."""
        self.new = key, value
        if self._past is None:
            return key, value
        cached = (part.expand(len(key), -1, -1, -1) for part in self._past)
        keys, values = (torch.cat(parts, dim=2) for parts in zip(cached, (key, value), strict=True))
        return keys, values


def run_layer(
    layer: Any, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, past: KeyValue | None
) -> tuple[Tensor, KeyValue]:
    """Return the output of a layer of transformers for `x` [N, W, H], and the windows' own rows.

    `rotation` is of the network's rotary embedding; `mask` [N or 1, 1, W, C + W] is added to the scores.
    """
    cache = _WindowCache(past)
    x = layer(x, attention_mask=mask, past_key_values=cache, position_embeddings=rotation)
    assert cache.new is not None
    return x, cache.new


def eager_model_from_checkpoint(
    checkpoint: Path, lora: Path | None, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> EagerModel:
    """Return the model of a checkpoint folder with its adapter merged (in float32), in `dtype` on `device`.

    Raises BadInputError as an export of the same folders would.
    """
    source = source_from_checkpoint(checkpoint, lora)
    weights = {each.name: merged_weight(source, each, device).to(dtype) for each in source.planned}
    return eager_model_from_weights(source, weights, device)


def eager_model_from_weights(source: Source, weights: Mapping[str, Tensor], device: str) -> EagerModel:
    """Return a model that holds `weights`, by their names in a bundle and on `device`, without a copy."""
    network = empty_sdpa_network(source)
    names = reference_names(source)
    load_weights(network, {names[name]: tensor for name, tensor in weights.items()}, source=source.checkpoint)
    network.model.rotary_emb.to(device)  # not a parameter: it stays float32
    return EagerModel(network)


def compiled_model(model: EagerModel) -> EagerModel:
    """Return the same network on the same weights, every layer compiled by torch.compile for each size that it meets.

    Layers share their code, so that a size is compiled once; what is outside of them stays eager.
    """
    weights = {id(each): each for each in model.parameters()}
    twin = copy.deepcopy(model, weights)  # deepcopy takes what it finds there for copied
    for layer in twin.layers:
        layer.self_attn.layer_idx = 0  # every layer has a cache of its own, and another number would be another code
        layer.compile(dynamic=False)
    return twin


def empty_sdpa_network(source: Source) -> Any:
    """Return transformers' network of a checkpoint without values, with the attention that transformers chooses."""
    return empty_network(source.config.dimensions, source.config.architecture.name, source.checkpoint, attention="sdpa")


def reference_names(source: Source) -> dict[str, str]:
    """Return transformers' name of every tensor by its name in a bundle."""
    names = names_of_architecture(source.config.architecture.name)
    found = {each.name: names.tensor(each.source) for each in source.planned}
    return found | {"head.weight": names.tensor(names.head)}  # a tied one has the embedding's source


def merged_weight(source: Source, planned: PlannedWeight, device: str) -> Tensor:
    """One tensor of `source` in float32 on `device`; matrices [outputs, inputs] as nn.Linear has them."""
    stored = source.adapter.replaced.get(planned.source, source.stored[planned.source])
    weight = stored.read().to(device).float()
    product = source.adapter.products.get(planned.source)
    if product is None:
        return weight
    return weight + product.scale * (product.up.read().to(device).float() @ product.down.read().to(device).float())
