"""Kernels of each operator, compiled ahead of time for one model and one GPU, with tiles that fit any launch."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import triton
import triton.language as tl

from lopa.plugins.kernels.ahead_of_time import CompiledKernel, compiled_kernel
from lopa.plugins.kernels.branch_attention_kernel import branch_attention_kernel
from lopa.plugins.kernels.commit_kernel import commit_kernel
from lopa.plugins.kernels.token_statistics_kernel import statistics_merge_kernel, statistics_partials_kernel
from lopa.plugins.launch_sizes import (
    COMMIT_ROWS,
    MIN_CHANNELS,
    AttentionTiles,
    Floats,
    HeadTiles,
    attention_tiles,
    head_tiles,
)
from lopa.runtime.contract import TOP_K

FACTORS = {"fp32": tl.float32, "fp16": tl.float16, "bf16": tl.bfloat16}
"""Types of the products' factors."""


@functools.cache
def compiled_branch_attention(
    floats: Floats, heads: int, kv_heads: int, size: int, capability: tuple[int, int]
) -> CompiledKernel:
    """Compile branch_attention_kernel. Its arguments are 7 inputs, branches, width, prefix and the output."""
    tensors = ("query", "key", "value", "past_key", "past_value", "output")
    types = dict.fromkeys(tensors, f"*{floats}") | dict.fromkeys(("window_mask", "prefix_mask"), "*i1")
    types |= dict.fromkeys(("branches", "width", "prefix"), "i32")
    constants = attention_constants(floats, heads, kv_heads, size, attention_tiles(floats))
    return compiled_kernel(branch_attention_kernel, types, constants, capability)


def attention_constants(
    floats: Floats, heads: int, kv_heads: int, size: int, tiles: AttentionTiles
) -> Mapping[str, Any]:
    """Return the constants of branch_attention_kernel."""
    return {
        "HEADS": heads,
        "KV_HEADS": kv_heads,
        "SIZE": size,
        "SCALE": 1.0 / math.sqrt(size),
        "FACTORS": FACTORS[floats],
        "CHANNELS": max(MIN_CHANNELS, triton.next_power_of_2(size)),
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
    }


@functools.cache
def compiled_statistics_partials(
    floats: Floats, hidden: int, vocabulary: int, splits: int, capability: tuple[int, int]
) -> CompiledKernel:
    """Compile statistics_partials_kernel. Its arguments are 3 inputs, rows, rows_per_temperature and 5 outputs."""
    types = {"hidden": f"*{floats}", "weight": f"*{floats}", "temperature": "*fp32"}
    types |= dict.fromkeys(("rows", "rows_per_temperature"), "i32")
    constants = partials_constants(floats, hidden, vocabulary, splits, head_tiles(floats))
    return compiled_kernel(statistics_partials_kernel, types | _partial_types(), constants, capability)


def partials_constants(
    floats: Floats, hidden: int, vocabulary: int, splits: int, tiles: HeadTiles
) -> Mapping[str, Any]:
    """Return the constants of statistics_partials_kernel."""
    return {
        "HIDDEN": hidden,
        "VOCABULARY": vocabulary,
        "SPLITS": splits,
        "TOP": TOP_K,
        "FACTORS": FACTORS[floats],
        "ROWS": tiles.rows,
        "COLUMNS": tiles.columns,
        "INNER": tiles.inner,
    }


@functools.cache
def compiled_statistics_merge(splits: int, capability: tuple[int, int]) -> CompiledKernel:
    """Compile statistics_merge_kernel. Its arguments are 5 inputs, then 3 outputs."""
    types = _partial_types() | {"ids": "*i32", "logprobs": "*fp32", "entropy": "*fp32"}
    return compiled_kernel(statistics_merge_kernel, types, merge_constants(splits), capability)


def merge_constants(splits: int) -> Mapping[str, Any]:
    """Return the constants of statistics_merge_kernel."""
    return {"SPLITS": splits, "TOP": TOP_K, "PLACES": triton.next_power_of_2(splits)}


@functools.cache
def compiled_commit(floats: Floats, kv_heads: int, size: int, capability: tuple[int, int]) -> CompiledKernel:
    """Compile commit_kernel. Its arguments are the table of addresses, window, slot, width, prefix, offset and count.

    The grid is (arrays, kv_heads, count / rows rounded up).
    """
    types = {"addresses": "*i64"} | dict.fromkeys(("window", "slot", "width", "prefix", "offset", "count"), "i32")
    return compiled_kernel(commit_kernel, types, commit_constants(floats, kv_heads, size), capability)


def commit_constants(floats: Floats, kv_heads: int, size: int) -> Mapping[str, Any]:
    """Return the constants of commit_kernel."""
    return {
        "WORD": tl.int32 if floats == "fp32" else tl.int16,
        "KV_HEADS": kv_heads,
        "SIZE": size,
        "CHANNELS": triton.next_power_of_2(size),
        "ROWS": COMMIT_ROWS,
    }


def _partial_types() -> dict[str, str]:
    sums = ("greatest_of_splits", "total_of_splits", "weighted_of_splits", "logit_of_splits")
    return dict.fromkeys(sums, "*fp32") | {"id_of_splits": "*i32"}
