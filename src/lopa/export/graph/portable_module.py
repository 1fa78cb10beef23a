"""The portable dialect's forward as a readable torch module: lopa.export.graph.module in plain operators of 4 axes.

The module is traced, and it runs. The branches of a request are concatenated into one window of S = B x W rows, and the
mask separates them. Without an axis of branches, no array has more than 4 axes and every Reshape has a constant target.
The prefix is read once per request, not once per branch. lopa.runtime.contract.portable_form prepares such windows.
"""

import torch
from torch import Tensor, nn

from lopa.export.graph.experts import ExpertRouter
from lopa.export.graph.module import (
    Attention,
    AttentionInputs,
    Layer,
    LayersWithHead,
    Norm,
    SparseMlp,
    statistics_of_logits,
)


class PortableNorm(Norm):
    """Norm in plain operators, with the mean square in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [..., size]."""
        return self.plain(x, self.eps) * self.weight

    @staticmethod
    def plain(x: Tensor, eps: float) -> Tensor:
        """Normalize [..., size] without a weight."""
        wide = x.float()
        return (wide / ((wide * wide).mean(dim=-1, keepdim=True) + eps).sqrt()).to(x.dtype)


class PortableAttention(Attention):
    """Attention in plain operators with additive masks and a softmax in float32."""

    def repeat_for_branches(self, past: Tensor, branches: int) -> Tensor:
        """Return `past` [R, Hkv, P, D] unchanged, because the branches of a request are one window."""
        assert branches == 1
        return past

    def rotate_all(self, x: Tensor, shared: AttentionInputs) -> Tensor:
        """Apply rotary positions to [R, heads, S, size], pairing the first half of the channels with the second."""
        return rotated_halves(x, shared.cosine, shared.sine)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the attention output [R, heads, S, D] for a query of the same shape.

        Keys and values are [R, Hkv, P + S, D]. The mask is additive, float32 [R, 1, S, P + S].
        """
        return attention_of_groups(query * self.head_size**-0.5, keys, values, mask)


def rotated_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the halves of [R, heads, S, size] by angles of [R, S, size / 2]."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = cosine.unsqueeze(1), sine.unsqueeze(1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def attention_of_groups(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return the attention output of a scaled query. Shapes are those of PortableAttention.attend.

    Heads that share a key are neighbours, so a reshape turns them into more rows of that key, and back.
    """
    (_, heads, _, size), kv_heads = query.shape, keys.shape[1]
    scores = (query.reshape(query.shape[0], kv_heads, -1, size) @ keys.transpose(2, 3)).float()
    scores = scores.reshape(scores.shape[0], heads, -1, scores.shape[3]) + mask
    weights = torch.softmax(scores, dim=-1).to(values.dtype)
    mixed = weights.reshape(weights.shape[0], kv_heads, -1, weights.shape[3]) @ values
    return mixed.reshape(mixed.shape[0], heads, -1, size)


class PortableRouter(ExpertRouter):
    """Router in plain operators, with a Cast behind every TopK."""

    def best(self, scores: Tensor, count: int) -> Tensor:
        """Return the ids of the `count` largest scores. The casts are for ATC's TopK, which returns int32."""
        return super().best(scores, count).int().long()

    def scores_of(self, scores: Tensor, ids: Tensor) -> Tensor:
        """Return the scores [R, S, E] at `ids` [R, S, k], as a sum because GatherElements is not portable."""
        return (self.is_number(ids, scores.shape[-1]) * scores.unsqueeze(-2)).sum(dim=-1)


class PortableSparseMlp(SparseMlp):
    """Mixture of experts with a PortableRouter."""

    router_type = PortableRouter


class PortableLayer(Layer):
    """Layer of PortableAttention, PortableNorm and PortableSparseMlp."""

    attention_type = PortableAttention
    norm_type = PortableNorm
    sparse_type = PortableSparseMlp


class PortableContractForward(LayersWithHead):
    """Forward in the portable form (docs/concepts/contract.md): the contract's inputs and outputs, folded."""

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
        """Return the statistics, each layer's new key and value, and optionally the logits, in the portable form."""
        shared = self._portable_inputs(position_ids, window_mask, prefix_mask)
        past = self._past_arrays(past_key_values)
        assert self.embedding is not None  # portable graphs have the whole model
        x, added, window = self.layer_by_layer(self.embedding(source), None, past, shared)
        sampled = nn.functional.embedding(logits_index, (x + added).flatten(0, 1))  # [M, H]
        logits = self.head(self.final_norm(sampled)).float()
        ids, logprobs, entropy = statistics_of_logits(logits, temperature)
        # ATC's TopK returns int32, and ONNX's returns int64 (error E89999). The explicit casts make them agree.
        statistics = (ids.int().long(), logprobs, entropy)
        return (*statistics, *window, logits) if self.with_logits else (*statistics, *window)

    def _past_arrays(self, past_key_values: Tensor) -> list[Tensor]:
        """Return each layer's key and value, [R, Hkv, P, D], from [2L, R * Hkv, P, D].

        A slice keeps its axis, so the Reshape after it copies P from the input and infers R.
        """
        arrays, _, prefix, head_size = past_key_values.shape
        shape = (-1, self.kv_heads, prefix, head_size)
        return [past_key_values[i : i + 1].reshape(shape) for i in range(arrays)]

    def _portable_inputs(self, position_ids: Tensor, window_mask: Tensor, prefix_mask: Tensor) -> AttentionInputs:
        angles = position_ids.unsqueeze(-1).float() * self.inverse_frequencies
        # Adding a column of zeros repeats the prefix mask for every row without an Expand.
        prefix = prefix_mask + window_mask[..., :1] * 0.0
        return AttentionInputs(
            angles.cos().to(self.dtype), angles.sin().to(self.dtype), torch.cat([prefix, window_mask], dim=-1), 1
        )
