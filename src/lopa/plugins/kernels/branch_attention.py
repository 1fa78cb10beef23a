"""Launcher of the branch attention kernel for torch tensors."""

import math

import torch
import triton

from lopa.plugins.kernels.branch_attention_kernel import branch_attention_kernel
from lopa.plugins.kernels.factors import factors_from_dtype, floats_from_dtype
from lopa.plugins.launch_sizes import MIN_CHANNELS, AttentionTiles, attention_tiles


def branch_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    past_key: torch.Tensor,
    past_value: torch.Tensor,
    window_mask: torch.Tensor,
    prefix_mask: torch.Tensor,
    tiles: AttentionTiles | None = None,
) -> torch.Tensor:
    """Compute `branch_attention_reference` with the same shapes, in the type of `query`. Sums are float32.

    All tensors are contiguous, on one device, in float32, float16 or bfloat16. Masks are bool. Raises ValueError for
    shapes that do not match.
    """
    tiles = tiles or attention_tiles(floats_from_dtype(query.dtype))
    requests, branches, heads, width, size = query.shape
    kv_heads, prefix = past_key.shape[1], past_key.shape[2]
    expected = {
        "key": (key, (requests, branches, kv_heads, width, size)),
        "value": (value, (requests, branches, kv_heads, width, size)),
        "past_key": (past_key, (requests, kv_heads, prefix, size)),
        "past_value": (past_value, (requests, kv_heads, prefix, size)),
        "window_mask": (window_mask, (requests, branches, width, width)),
        "prefix_mask": (prefix_mask, (requests, prefix)),
    }
    for name, (tensor, shape) in expected.items():
        if tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise ValueError(f"received {name} {tuple(tensor.shape)}, expected contiguous {shape}")
    if heads % kv_heads or not query.is_contiguous():
        raise ValueError(f"received query {tuple(query.shape)}, expected contiguous, heads a multiple of {kv_heads}")
    output = torch.empty_like(query)
    grid = (triton.cdiv(branches * (heads // kv_heads) * width, tiles.rows), kv_heads, requests)
    branch_attention_kernel[grid](
        query,
        key,
        value,
        past_key,
        past_value,
        window_mask,
        prefix_mask,
        branches,
        width,
        prefix,
        output,
        HEADS=heads,
        KV_HEADS=kv_heads,
        SIZE=size,
        SCALE=1.0 / math.sqrt(size),
        FACTORS=factors_from_dtype(query.dtype),
        CHANNELS=max(MIN_CHANNELS, triton.next_power_of_2(size)),
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
    )
    return output
