"""The three operators in plain torch on any device, a second reference for the kernels."""

from collections.abc import Sequence

import torch
from torch.nn import functional

from lopa.runtime.contract import TOP_K


def branch_attention_in_torch(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past_key: torch.Tensor,
    past_value: torch.Tensor,
    window_mask: torch.Tensor,
    prefix_mask: torch.Tensor,
) -> torch.Tensor:
    """Compute `branch_attention` with the graph's batch layout, copying the prefix for every branch."""
    requests, branches, _, width, _ = query.shape

    def joined(past: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        every = past.unsqueeze(1).expand(-1, branches, -1, -1, -1)
        return torch.cat([every, new], dim=3).flatten(0, 1)

    prefix = prefix_mask[:, None, None].expand(requests, branches, width, -1)
    mask = torch.cat([prefix, window_mask], dim=-1).flatten(0, 1).unsqueeze(1)
    attended = functional.scaled_dot_product_attention(
        query.flatten(0, 1), joined(past_key, key), joined(past_value, value), attn_mask=mask, enable_gqa=True
    )
    return attended.reshape(query.shape)


def token_statistics_in_torch(
    hidden: torch.Tensor, weight: torch.Tensor, temperature: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `token_statistics` with stored logits in the type of `hidden`; `temperature` is [N]."""
    logprobs = ((hidden @ weight).float() / temperature[:, None]).log_softmax(-1)
    top, ids = logprobs.topk(TOP_K, dim=-1)
    return ids, top, -(logprobs.exp() * logprobs).sum(-1)


def commit_in_torch(
    windows: Sequence[torch.Tensor],
    caches: Sequence[torch.Tensor],
    *,
    request: int,
    branch: int,
    slot: int,
    offset: int,
    count: int,
) -> None:
    """Do the work of `commit_reference` with one copy per array."""
    for rows, cache in zip(windows, caches, strict=True):
        cache[slot, :, offset : offset + count] = rows[request, branch, :, :count]
