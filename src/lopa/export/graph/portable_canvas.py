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
    CanvasNorm,
    Kind,
    ParallelMlp,
    ScaledExperts,
    ScaledRouter,
)
from lopa.export.graph.portable_module import PortableNorm, PortableRouter, attention_of_groups, rotated_halves


class _Norm(PortableNorm, CanvasNorm):
    @staticmethod
    def plain(x: Tensor, eps: float) -> Tensor:
        wide = x.float()
        return (wide / ((wide * wide).mean(dim=-1, keepdim=True) + eps).sqrt()).to(x.dtype)


class _Attention(CanvasAttention):
    norm_type = _Norm

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        return attention_of_groups(query, keys, values, mask)

    def rotated(self, x: Tensor, kind: Kind) -> Tensor:
        return rotated_halves(x, kind.cosine, kind.sine)

    def unpacked(self, past: Tensor, branches: int) -> Tensor:
        """Return the cached rows [R, kv heads, P, D] from [1, R, P, width]."""
        assert branches == 1
        used = past[..., : self.kv_heads * self.head_size].squeeze(0)
        return used.reshape(*used.shape[:2], self.kv_heads, self.head_size).transpose(1, 2)

    def filled(self, rows: Tensor, missing: int, kind: Kind) -> Tensor:
        zeros = kind.cosine[..., :1] * 0.0 + torch.zeros(missing, dtype=rows.dtype)
        return torch.cat([rows, zeros], dim=-1)


class _Router(PortableRouter, ScaledRouter):
    norm_type = _Norm


class _Experts(ScaledExperts):
    def factors(self, ids: Tensor) -> Tensor:
        return ((ids.unsqueeze(-1) == torch.arange(len(self.scale))) * self.scale).sum(dim=-1)


class _Mlp(ParallelMlp):
    router_type = _Router
    experts_type = _Experts


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
        return self.outputs(functional.embedding(logits_index, x.flatten(0, 1)), temperature, uniform, window)

    def indices(self, ids: Tensor) -> Tensor:
        """Return the ids with a Cast for ATC, whose TopK returns int32."""
        return ids.int().long()
