"""Launcher of the kernels for token statistics for torch tensors."""

import torch
import triton

from lopa.plugins.kernels.factors import factors_from_dtype, floats_from_dtype
from lopa.plugins.kernels.token_statistics_kernel import statistics_merge_kernel, statistics_partials_kernel
from lopa.plugins.launch_sizes import HeadTiles, head_tiles, splits_from_vocabulary
from lopa.runtime.contract import TOP_K


def token_statistics(
    hidden: torch.Tensor, weight: torch.Tensor, temperature: torch.Tensor, tiles: HeadTiles | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute `token_statistics_reference` with the same shapes. Ids are int64, and log-probabilities and entropy are
    float32.

    All tensors are contiguous, on one device. `hidden` and `weight` share a type: float32, float16 or bfloat16.
    `temperature` is float32. With N / n temperatures, each applies to n consecutive rows. Raises ValueError for shapes
    that do not match.
    """
    tiles = tiles or head_tiles(floats_from_dtype(hidden.dtype))
    rows, size = hidden.shape
    vocabulary, temperatures = weight.shape[1], temperature.shape[0]
    contiguous = hidden.is_contiguous() and weight.is_contiguous() and temperature.is_contiguous()
    if weight.shape[0] != size or rows % temperatures or vocabulary < TOP_K or not contiguous:
        raise ValueError(
            f"received {tuple(hidden.shape)} x {tuple(weight.shape)} / {tuple(temperature.shape)}, "
            f"expected contiguous [N, H], [H, V] with V >= {TOP_K}, and [N] or a divisor of it"
        )
    splits = splits_from_vocabulary(vocabulary)
    sums = [torch.empty(rows, splits, dtype=torch.float32, device=hidden.device) for _ in range(3)]
    logits = torch.empty(rows, splits, TOP_K, dtype=torch.float32, device=hidden.device)
    numbers = torch.empty(rows, splits, TOP_K, dtype=torch.int32, device=hidden.device)
    statistics_partials_kernel[(triton.cdiv(rows, tiles.rows), splits)](
        hidden,
        weight,
        temperature,
        rows,
        rows // temperatures,
        *sums,
        logits,
        numbers,
        HIDDEN=size,
        VOCABULARY=vocabulary,
        SPLITS=splits,
        TOP=TOP_K,
        FACTORS=factors_from_dtype(hidden.dtype),
        ROWS=tiles.rows,
        COLUMNS=tiles.columns,
        INNER=tiles.inner,
    )
    ids = torch.empty(rows, TOP_K, dtype=torch.int32, device=hidden.device)
    logprobs = torch.empty(rows, TOP_K, dtype=torch.float32, device=hidden.device)
    entropy = torch.empty(rows, dtype=torch.float32, device=hidden.device)
    statistics_merge_kernel[(rows,)](
        *sums,
        logits,
        numbers,
        ids,
        logprobs,
        entropy,
        SPLITS=splits,
        TOP=TOP_K,
        PLACES=triton.next_power_of_2(splits),
    )
    return ids.long(), logprobs, entropy
