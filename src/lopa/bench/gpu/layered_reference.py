"""Logits in float32 of whole sequences, on any device, with the weights of one layer there at a time.

A model of 7 billion weights takes 30 GB in float32; so it takes what its largest matrix does. The network is that of
lopa.bench.speed.eager_model, without a cache. Does not know engines or bundles.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from lopa.bench.speed.eager_model import (
    Layer,
    RmsNorm,
    frequencies_from_dimensions,
    merged_weight,
    rotation_from_positions,
)
from lopa.export.source import source_from_checkpoint
from lopa.export.verify.cases import Sequences


def float32_logits(checkpoint: Path, sequences: Sequence[Sequences], device: str) -> list[Tensor]:
    """Of the wanted rows of each of `sequences`: [B, Q, V], float32 on `device`.

    Raises BadInputError as an export of the checkpoint would.
    """
    source = source_from_checkpoint(checkpoint, None)
    planned = {each.name: each for each in source.planned}
    sizes = source.config.dimensions
    frequencies = frequencies_from_dimensions(sizes).to(device)
    with torch.inference_mode():
        embedding = merged_weight(source, planned["embedding.weight"], device)
        streams = [embedding[torch.tensor(each.input_ids, device=device)] for each in sequences]
        del embedding
        turns = [
            rotation_from_positions(torch.tensor(each.position_ids, device=device), frequencies, torch.float32)
            for each in sequences
        ]
        masks = [_added_mask(each, device) for each in sequences]
        for number in range(sizes.layers):
            prefix = f"layers.{number}."
            with torch.device("meta"):
                layer = Layer(sizes)
            layer.load_state_dict(
                {
                    name.removeprefix(prefix): merged_weight(source, each, device)
                    for name, each in planned.items()
                    if name.startswith(prefix)
                },
                assign=True,
            )
            streams = [
                layer(stream, cos, sin, mask, None)[0]
                for stream, (cos, sin), mask in zip(streams, turns, masks, strict=True)
            ]
        norm = RmsNorm(sizes.hidden_size, sizes.rms_norm_eps)
        norm.load_state_dict({"weight": merged_weight(source, planned["final_norm.weight"], device)}, assign=True)
        head = merged_weight(source, planned["head.weight"], device)
        return [
            functional.linear(norm(_wanted(stream, each)), head)
            for stream, each in zip(streams, sequences, strict=True)
        ]


def _added_mask(sequences: Sequences, device: str) -> Tensor:
    """[B, 1, L, L]: 0 where a row may attend, minus infinity elsewhere."""
    allowed = torch.tensor(sequences.mask, device=device)[:, None]
    return torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, float("-inf"))


def _wanted(stream: Tensor, sequences: Sequences) -> Tensor:
    """[B, L, H] -> [B, Q, H]"""
    wanted = torch.tensor(sequences.wanted, device=stream.device)
    return stream[torch.arange(len(wanted), device=stream.device)[:, None], wanted]
