"""The portable dialect's forward as a readable torch module: lopa.export.graph.module in plain operators of 4 axes.

Used for tracing, and runnable. The branches of a request lie one behind the other in one window of S = B x W rows, kept
apart by the mask, so no axis of branches is needed: no array has more than 4 axes, the prefix is read once for each
request instead of being repeated for every branch, and every Reshape has a constant target. Does not know how a caller
lays its windows out that way (lopa.runtime.contract.portable_form does).
"""

import torch
from torch import Tensor, nn

from lopa.export.graph.module import Attention, Layer, LayersWithHead, Norm, Rows, statistics_of_logits


class PortableNorm(Norm):
    """Norm in plain operators, its mean square in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., size] -> [..., size]"""
        wide = x.float()
        mean_square = (wide * wide).mean(dim=-1, keepdim=True)
        return (wide / (mean_square + self.eps).sqrt()).to(x.dtype) * self.weight


class PortableAttention(Attention):
    """Attention in plain operators with additive masks, its softmax in float32."""

    def of_branches(self, past: Tensor, branches: int) -> Tensor:
        """[R, Hkv, P, D] as it is: the branches of a request are one window here."""
        assert branches == 1
        return past

    def rotated(self, x: Tensor, rows: Rows) -> Tensor:
        """[R, heads, S, D], the first half of the channels paired with the second."""
        first, second = x.chunk(2, dim=-1)
        cosine, sine = rows.cosine.unsqueeze(1), rows.sine.unsqueeze(1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    def attended(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """[R, heads, S, D], twice [R, Hkv, P + S, D] and additive float32 [R, 1, S, P + S] -> [R, heads, S, D]

        The heads that share a key are neighbours, so that they can be taken for more rows of it and back.
        """
        heads, kv_heads = query.shape[1], keys.shape[1]
        grouped = (query * self.head_size**-0.5).reshape(query.shape[0], kv_heads, -1, self.head_size)
        scores = (grouped @ keys.transpose(2, 3)).float()
        scores = scores.reshape(scores.shape[0], heads, -1, scores.shape[3]) + mask
        weights = torch.softmax(scores, dim=-1).to(values.dtype)
        mixed = weights.reshape(weights.shape[0], kv_heads, -1, weights.shape[3]) @ values
        return mixed.reshape(mixed.shape[0], heads, -1, self.head_size)


class PortableLayer(Layer):
    """Layer of the parts above."""

    attention_type = PortableAttention
    norm_type = PortableNorm


class PortableForward(LayersWithHead):
    """One forward in the portable form (docs/concepts/contract.md): the contract's inputs and outputs, folded."""

    layer_type = PortableLayer

    def forward(
        self,
        source: Tensor,
        position_ids: Tensor,
        window_mask: Tensor,
        prefix_mask: Tensor,
        logits_index: Tensor,
        temperature: Tensor,
        past_key_values: Tensor,
    ) -> tuple[Tensor, ...]:
        """Shapes as in the portable form: the statistics, each layer's new key and value, then logits if wanted."""
        rows = self._portable_rows(position_ids, window_mask, prefix_mask)
        past = self._past_arrays(past_key_values)
        assert self.embedding is not None  # the whole model
        x, added, window = self.layer_by_layer(self.embedding(source), None, past, rows)
        wanted = nn.functional.embedding(logits_index, (x + added).flatten(0, 1))  # [M, H]
        logits = self.head(self.final_norm(wanted)).float()
        ids, logprobs, entropy = statistics_of_logits(logits, temperature)
        # ATC's TopK gives int32 where ONNX has int64 (error E89999): said explicitly, both agree.
        statistics = (ids.int().long(), logprobs, entropy)
        return (*statistics, *window, logits) if self.with_logits else (*statistics, *window)

    def _past_arrays(self, past_key_values: Tensor) -> list[Tensor]:
        """[2L, R * Hkv, P, D] -> each layer's key and value, [R, Hkv, P, D].

        A slice keeps its axis: the Reshape behind it copies P from where it is and infers R.
        """
        arrays, _, prefix, head_size = past_key_values.shape
        shape = (-1, self.kv_heads, prefix, head_size)
        return [past_key_values[i : i + 1].reshape(shape) for i in range(arrays)]

    def _portable_rows(self, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor) -> Rows:
        angles = position_ids.unsqueeze(-1).float() * self.inverse_frequencies
        # Adding a column of zeros repeats the prefix's mask for every row without an Expand.
        prefix = prefix_mask + window_mask[..., :1] * 0.0
        return Rows(
            angles.cos().to(self.dtype), angles.sin().to(self.dtype), torch.cat([prefix, window_mask], dim=-1), 1
        )
