"""The portable dialect's forward of contract 2: lopa.export.graph.canvas_module in plain operators of 4 axes.

The branches of a request are one window, as in lopa.export.graph.portable_module. Masks have two channels: for full
layers, and for layers with a sliding window.
"""

import torch
from torch import Tensor
from torch.nn import functional

from lopa.export.graph.canvas_module import (
    CanvasAttention,
    CanvasForward,
    CanvasLayer,
    Kind,
    ParallelMlp,
    ScaledRouter,
)
from lopa.export.graph.portable_module import PortableNorm, PortableRouter, attention_of_groups, rotated_halves


class _Attention(CanvasAttention):
    norm_type, rotated, attend = PortableNorm, staticmethod(rotated_halves), staticmethod(attention_of_groups)

    def unpacked(self, past: Tensor, branches: int) -> Tensor:
        """Return the cached rows [R, kv heads, P, D] from [1, R, P, width]."""
        assert branches == 1
        used = past[..., : self.kv_heads * self.head_size].squeeze(0)
        return used.reshape(*used.shape[:2], self.kv_heads, self.head_size).transpose(1, 2)


class _Router(PortableRouter, ScaledRouter):
    norm_type = PortableNorm


class _Mlp(ParallelMlp):
    router_type = _Router


class _Layer(CanvasLayer):
    attention_type = _Attention
    mlp_type = _Mlp


class PortableCanvasForward(CanvasForward):
    """Forward in the portable form (docs/concepts/contract.md): the contract's inputs and outputs, folded."""

    layer_type = _Layer

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        logits_index: Tensor,
        temperature: Tensor,
        is_canvas: Tensor,
        soft_embeddings: Tensor,
        uniform: Tensor,
        past_key_values: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the statistics, each layer's new key and value, and optionally the logits, in the portable form."""
        in_canvas = is_canvas.unsqueeze(-1)
        x = self.embedded(input_ids, soft_embeddings, in_canvas)
        masks = torch.cat([prefix_mask, window_mask], dim=-1)
        kinds = []
        for channel, frequencies in ((1, self.inverse_frequencies), (0, self.full_frequencies)):
            angles = position_ids.unsqueeze(-1).float() * frequencies
            mask = masks[:, channel : channel + 1]
            kinds.append(Kind(angles.cos().to(self.dtype), angles.sin().to(self.dtype), mask))
        past = [past_key_values[i : i + 1] for i in range(2 * len(self.layers))]
        x, window = self.layer_by_layer(x, past, (kinds[0], kinds[1]), in_canvas, 1)
        sampled = functional.embedding(logits_index, x.flatten(0, 1))
        ids, *others = self.outputs(sampled, temperature, uniform, window)
        return ids.int().long(), *others  # ATC's TopK returns int32
