"""Float32 logits of whole sequences on any device, with the weights of one layer at a time.

A model of 7 billion weights needs 30 GB in float32, which this module needs in host memory. Part by part, device memory
for the largest part suffices: a layer, the embedding or the head. The network comes from transformers and runs without
a cache.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lopa.export.source import source_from_checkpoint
from lopa.export.verify.cases import Sequences
from lopa.export.verify.reference_model import network_from_checkpoint


def float32_logits(checkpoint: Path, sequences: Sequence[Sequences], device: str) -> list[Tensor]:
    """Return the logits of the sampled positions of each of `sequences`: [B, Q, V], float32 on `device`.

    Raises BadInputError as an export of the checkpoint does.
    """
    config = source_from_checkpoint(checkpoint, None).config
    network = network_from_checkpoint(config.dimensions, config.architecture.name, checkpoint)

    def fill(path: str) -> Any:
        """Move a part of the network to the device."""
        return network.get_submodule(path).to(device)

    with torch.inference_mode():
        embedding = fill("model.embed_tokens")
        streams = [embedding(torch.tensor(each.input_ids, device=device)) for each in sequences]
        embedding.to("meta")
        rotary = network.model.rotary_emb.to(device)
        rotations = [
            rotary(stream, torch.tensor(each.position_ids, device=device))
            for stream, each in zip(streams, sequences, strict=True)
        ]
        masks = [_added_mask(each, device) for each in sequences]
        for number in range(config.dimensions.layers):
            layer = fill(f"model.layers.{number}")
            streams = [
                layer(stream, attention_mask=mask, position_embeddings=rotation)
                for stream, rotation, mask in zip(streams, rotations, masks, strict=True)
            ]
            layer.to("meta")
        norm, head = fill("model.norm"), fill("lm_head")
        return [head(norm(_wanted(stream, each))) for stream, each in zip(streams, sequences, strict=True)]


def _added_mask(sequences: Sequences, device: str) -> Tensor:
    """Return the additive mask [B, 1, L, L], which is 0 if a row may attend and otherwise minus infinity."""
    allowed = torch.tensor(sequences.mask, device=device)[:, None]
    return torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, float("-inf"))


def _wanted(stream: Tensor, sequences: Sequences) -> Tensor:
    """Select the sampled positions: [B, L, H] -> [B, Q, H]."""
    wanted = torch.tensor(sequences.wanted, device=stream.device)
    return stream[torch.arange(len(wanted), device=stream.device)[:, None], wanted]
