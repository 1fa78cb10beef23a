"""Kernels of each operator, compiled ahead of time for one model and one GPU, with tiles that fit any launch."""

import functools
import math

import triton
import triton.language as tl

from lopa.plugins.kernels.ahead_of_time import CompiledKernel, compiled_kernel
from lopa.plugins.kernels.branch_attention_kernel import branch_attention_kernel
from lopa.plugins.kernels.commit_kernel import commit_kernel
from lopa.plugins.kernels.token_statistics_kernel import statistics_merge_kernel, statistics_partials_kernel
from lopa.plugins.launch_sizes import COMMIT_ROWS, MIN_CHANNELS, Floats, attention_tiles, head_tiles
from lopa.runtime.contract import TOP_K

_FACTORS = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}


@functools.cache
def compiled_branch_attention(
    floats: Floats, heads: int, kv_heads: int, size: int, capability: tuple[int, int]
) -> CompiledKernel:
    """Compile branch_attention_kernel. Its arguments are 7 inputs, branches, width, prefix and the output."""
    tiles = attention_tiles(floats)
    tensors = ("query", "key", "value", "past_key", "past_value", "output")
    types = dict.fromkeys(tensors, f"*{floats}") | dict.fromkeys(("window_mask", "prefix_mask"), "*i1")
    constants = {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "SIZE": size,
        "SCALE": 1.0 / math.sqrt(size),
        "FACTORS": _FACTORS[floats],
        "CHANNELS": max(MIN_CHANNELS, triton.next_power_of_2(size)),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
    }
    types |= dict.fromkeys(("branches", "width", "prefix"), "i32")
    return compiled_kernel(branch_attention_kernel, types, constants, capability)


@functools.cache
def compiled_statistics_partials(
    floats: Floats, hidden: int, vocabulary: int, splits: int, capability: tuple[int, int]
) -> CompiledKernel:
    """Compile statistics_partials_kernel. Its arguments are 3 inputs, rows, rows_per_temperature and 5 outputs."""
    tiles = head_tiles(floats)
    types = {"hidden": f"*{floats}", "weight": f"*{floats}", "temperature": "*fp32"}
    types |= dict.fromkeys(("rows", "rows_per_temperature"), "i32")
    constants = {
        "HIDDEN": hidden,
        "VOCABULARY": vocabulary,
        "SPLITS": splits,
        "TOP": TOP_K,
        "FACTORS": _FACTORS[floats],
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "INNER": tiles.inner,
    }
    return compiled_kernel(statistics_partials_kernel, types | _partial_types(), constants, capability)


@functools.cache
def compiled_statistics_merge(splits: int, capability: tuple[int, int]) -> CompiledKernel:
    """Compile statistics_merge_kernel. Its arguments are 5 inputs, then 3 outputs."""
    types = _partial_types() | {"ids": "*i32", "logprobs": "*fp32", "entropy": "*fp32"}
    constants = {"SPLITS": splits, "TOP": TOP_K, "PLACES": triton.next_power_of_2(splits)}
    return compiled_kernel(statistics_merge_kernel, types, constants, capability)


@functools.cache
def compiled_commit(floats: Floats, kv_heads: int, size: int, capability: tuple[int, int]) -> CompiledKernel:
    """Compile commit_kernel. Its arguments are the table of addresses, window, slot, width, prefix, offset and count.

    The grid is (arrays, kv_heads, count / rows rounded up).
    """
    types = {"addresses": "*i64"} | dict.fromkeys(("window", "slot", "width", "prefix", "offset", "count"), "i32")
    constants = {
        "WORD": tl.int32 if floats == "fp32" else tl.int16,
        "KV_HEADS": kv_heads,
        "SIZE": size,
        "CHANNELS": triton.next_power_of_2(size),
        "ROWS": COMMIT_ROWS,
    }
    return compiled_kernel(commit_kernel, types, constants, capability)


def _partial_types() -> dict[str, str]:
    sums = ("greatest_of_splits", "total_of_splits", "weighted_of_splits", "logit_of_splits")
    return dict.fromkeys(sums, "*fp32") | {"id_of_splits": "*i32"}
