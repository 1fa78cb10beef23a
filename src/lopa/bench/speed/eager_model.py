"""Network of transformers in eager mode, with transformers' dynamic cache.

It is the baseline of the speed benchmarks. It shares no code with the exported graph. Every call concatenates cached
and new keys and values, runs SDPA with an additive mask, and computes the logits of every window row. It has no notion
of blocks or statistics.

It avoids three costs of the published code. The adapter is merged, whereas the published code computes LoRA separately
for every matrix. Data type and device never change. No model wrapper surrounds the layers.

Shapes: N windows, W window rows, C cached rows, V vocabulary.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from lopa.export.source import source_from_checkpoint
from lopa.export.verify.reference_model import network_from_checkpoint


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

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
        """Map ids and positions [N, W] and `mask` [N or 1, 1, W, C + W] to logits [N, W, V].

        The windows' rows are appended to `cache`, which has a layer for each of the network's.
        """
        model = self.network.model
        x = model.embed_tokens(ids)
        rotation = model.rotary_emb(x, positions)
        for layer, rows in zip(model.layers, cache.layers, strict=True):
            x = layer(x, attention_mask=mask, past_key_values=rows, position_embeddings=rotation)
        logits: Tensor = self.network.lm_head(model.norm(x))
        return logits


def eager_model_from_checkpoint(
    checkpoint: Path, lora: Path | None, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> EagerModel:
    """Return the model of a checkpoint folder with its adapter merged (in float32), in `dtype` on `device`.

    Raises BadInputError as an export of the same folders does.
    """
    config = source_from_checkpoint(checkpoint, lora).config
    network = network_from_checkpoint(config.dimensions, config.architecture.name, checkpoint, lora)
    network.config._attn_implementation = "sdpa"
    network.to(device)
    for parameter in network.parameters():  # rotary frequencies, which are no parameters, stay float32
        parameter.data = parameter.data.to(dtype)
    return EagerModel(network)


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
