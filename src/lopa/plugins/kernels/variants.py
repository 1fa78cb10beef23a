"""Table of the kernels' variants: types, constants and tiles of every kernel that an archive contains."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from lopa.plugins.kernels.branch_attention_kernel import attention_merge_kernel, branch_attention_kernel
from lopa.plugins.kernels.commit_kernel import commit_kernel
from lopa.plugins.kernels.experts_kernel import (
    expert_down_kernel,
    expert_gate_up_kernel,
    expert_sum_kernel,
    expert_tasks_kernel,
)
from lopa.plugins.kernels.product_kernel import int4_product_kernel, product_merge_kernel, rounded_product_kernel
from lopa.plugins.kernels.rms_norm_kernel import rms_norm_kernel
from lopa.plugins.kernels.rounding_kernel import round_rows_kernel, scale_rows_kernel
from lopa.plugins.kernels.split_rotary_kernel import split_rotary_kernel
from lopa.plugins.kernels.swiglu_kernel import rounded_swiglu_kernel, swiglu_kernel
from lopa.plugins.kernels.token_statistics_kernel import statistics_merge_kernel, statistics_partials_kernel

KERNELS: Mapping[str, tuple[Any, str]] = {
    "rms_norm": (rms_norm_kernel, "TTTFFiTTUFafffi"),
    "split_rotary": (split_rotary_kernel, "TTTaaFFiTiTTTTTTTiiiaaaif"),
    "branch_attention": (branch_attention_kernel, "TTTTITFiiaaaaif"),
    "attention_merge": (attention_merge_kernel, "FITiiai"),
    "swiglu": (swiglu_kernel, "TTFFiTaai"),
    "rounded_swiglu": (rounded_swiglu_kernel, "TTFFiUFaaffii"),
    "round_rows": (round_rows_kernel, "TUFaffi"),
    "scale_rows": (scale_rows_kernel, "TFFTa"),
    "int4_product": (int4_product_kernel, "TITTFiaaa"),
    "rounded_product": (rounded_product_kernel, "UUTFiaaaf"),
    "product_merge": (product_merge_kernel, "FTia"),
    "statistics_partials": (statistics_partials_kernel, "TFiiiFFFIF"),
    "statistics_merge": (statistics_merge_kernel, "FFFIFiLFF"),
    "commit": (commit_kernel, "Liiiiiiii"),
    "expert_tasks": (expert_tasks_kernel, "LIIi"),
    "expert_gate_up": (expert_gate_up_kernel, "TFTTTTIITiaai"),
    "expert_gate_up_int4": (expert_gate_up_kernel, "TFUTUTIITiaai"),
    "expert_gate_up_rounded": (expert_gate_up_kernel, "UFUFUFIIFiaai"),
    "expert_down": (expert_down_kernel, "TFFTTIIFaa"),
    "expert_down_int4": (expert_down_kernel, "TFFUTIIFaa"),
    "expert_down_rounded": (expert_down_kernel, "UFFUFIIFaa"),
    "expert_sum": (expert_sum_kernel, "FTia"),
}
"""Kernels with the types of their arguments. T is a pointer to the variant's floats; F, I, L and B are pointers to
float32, int32, int64 and bool, and U is one to bytes. Numbers are f (float32), i (int32) and a (int32, a multiple of
16)."""
ARGUMENT_TYPES = {"F": "*fp32", "I": "*i32", "L": "*i64", "B": "*i1", "U": "*i8", "f": "fp32", "i": "i32", "a": "i32"}
"""Triton's types of arguments other than T."""
FLOATS = ("fp32", "fp16", "bf16")
"""Types of rows, caches and weights."""
HEAD_CHANNELS = (64, 128, 256, 512)
"""Channels of a head, rounded up."""
CANDIDATES = (8, 16, 32, 64)
"""Numbers of candidates of the token statistics."""
CHUNK_ROWS = 64
"""Rows of a chunk of a cache."""
PRODUCT_COLUMNS = 128
"""Columns of a tile of a product."""
PRODUCT_ROWS = (32, 64, 128)
"""Rows of a tile of a product, rounded up."""
MAX_SPLITS = 32
"""Maximum number of splits of the vocabulary."""
MAX_EXPERTS = 512
"""Experts of a layer."""
EXPERT_TILE = 32
"""Pairs of a row and an expert that share the expert's matrices once."""
MAX_SHARED_KIB = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 103: 227, 120: 99, 121: 99}
"""KiB of shared memory of a block, by target."""


@dataclass(frozen=True)
class KernelVariant:
    """Variant of a kernel for one target."""

    kernel: str
    """Key of KERNELS."""
    floats: str
    """Type of T, or an empty string without one."""
    constants: Mapping[str, Any]
    warps: int
    stages: int = 1
    """Steps of a pipelined loop that are loaded ahead, plus 1."""


@dataclass(frozen=True)
class AttentionTiles:
    """Tile sizes of branch_attention_kernel."""

    columns: int
    """Columns of the prefix per step. They divide CHUNK_ROWS."""
    own: int
    """Packed rows per step."""
    pairs: int
    """Pairs of a row and a query head per step."""
    stages: int
    warps: int = 4


def variants(target: int) -> dict[str, KernelVariant]:
    """Return the variants for a target, e.g. 90, by name."""
    return dict(_variants(target))


def _variants(target: int) -> Iterator[tuple[str, KernelVariant]]:
    for floats in FLOATS:
        for block, warps in ((1024, 4), (4096, 8)):
            for skip, rounds in itertools.product((False, True), repeat=2):
                name = f"rms_norm.{floats}{'.rounded' if rounds else ''}{'.skip' if skip else ''}.{block}"
                yield name, KernelVariant("rms_norm", floats, {"SKIP": skip, "ROUND": rounds, "BLOCK": block}, warps)
        for channels in HEAD_CHANNELS:
            yield from _attention(target, floats, channels)
        for name, block, warps in (("swiglu", 1024, 4), ("scale_rows", 1024, 4), ("product_merge", 1024, 4)):
            yield f"{name}.{floats}", KernelVariant(name, floats, {"BLOCK": block}, warps)
        for name in ("round_rows", "rounded_swiglu"):
            yield f"{name}.{floats}", KernelVariant(name, floats, {"BLOCK": 4096}, 8)
        for rows in PRODUCT_ROWS:
            yield from _products(target, floats, rows)
        for top in CANDIDATES:
            constants = {"TOP": top, "BLOCK": 512}
            yield f"statistics_partials.{floats}.{top}", KernelVariant("statistics_partials", floats, constants, 1)
    for top in CANDIDATES:
        constants = {"TOP": top, "PLACES": MAX_SPLITS}
        yield f"statistics_merge.{top}", KernelVariant("statistics_merge", "", constants, 1 if top < 32 else 4)
    for size, word in ((2, tl.int16), (4, tl.int32), (8, tl.int64)):
        yield f"commit.{size}", KernelVariant("commit", "", {"WORD": word, "WORDS": 256 // size, "ROWS": 8}, 4)
    yield from _expert_variants(target)


def _attention(target: int, floats: str, channels: int) -> Iterator[tuple[str, KernelVariant]]:
    """Yield the kernels for heads of a size. Only models with norms have heads of 512, or a sliding window: those of
    256 channels have one."""
    for name, norm in (("", False), (".norm", True))[channels == 512 :]:
        constants: dict[str, Any] = {"CHANNELS": channels, "NORM": norm}
        yield f"split_rotary.{floats}{name}.{channels}", KernelVariant("split_rotary", floats, constants, 1)
    tiles = attention_tiles(target, floats, channels)
    for name, slides in (("", False), (".sliding", True))[: 1 + (channels == 256)]:
        constants = {"CHANNELS": channels, "COLUMNS": tiles.columns, "OWN": tiles.own, "TILE": tiles.pairs}
        constants |= {"CHUNK_ROWS": CHUNK_ROWS, "SLIDING": slides}
        warps = 8 if slides and floats == "fp32" and target != 90 else tiles.warps  # without spilled registers
        variant = KernelVariant("branch_attention", floats, constants, warps, tiles.stages)
        yield f"branch_attention.{floats}{name}.{channels}", variant
    name = f"attention_merge.{floats}.{channels}"
    yield name, KernelVariant("attention_merge", floats, {"CHANNELS": channels}, 8 if channels == 512 else 4, 3)


def _expert_variants(target: int) -> Iterator[tuple[str, KernelVariant]]:
    constants: dict[str, Any] = {"BINS": MAX_EXPERTS, "BLOCK": 1024, "TILE": EXPERT_TILE}
    yield "expert_tasks", KernelVariant("expert_tasks", "", constants, 4)
    # Kind, columns, step, and stages of the products by the end of a kernel's name and the type in a variant's.
    products = {("_rounded", "int8"): ("int8", 64, 64, 4)}
    products["_rounded", "fp8"] = ("fp8" if target >= 89 else "fp8_bits", 64, 128, 3)
    for floats in FLOATS:
        yield f"expert_sum.{floats}", KernelVariant("expert_sum", floats, {"BLOCK": 1024}, 4)
        products["", floats] = ("float", 32, 32, 3) if floats == "fp32" else ("float", 64, 64, 3)
        products["_int4", floats] = ("int4", 16, 32, 3) if floats == "fp32" else ("int4", 128, 32, 5)
    for (end, floats), (kind, columns, step, stages) in products.items():
        for name in (f"expert_gate_up{end}", f"expert_down{end}"):
            constants = {"KIND": kind, "TILE": EXPERT_TILE, "COLUMNS": columns, "STEP": step}
            yield f"{name}.{floats}", KernelVariant(name, floats, constants, 4, stages)


def _products(target: int, floats: str, rows: int) -> Iterator[tuple[str, KernelVariant]]:
    """Yield the products with tiles of `rows` rows. The tiles have about the fewest instructions for a number."""
    stages = 4 if MAX_SHARED_KIB[target] > 99 else 3
    tile = {"ROWS": rows, "COLUMNS": PRODUCT_COLUMNS, "DEPTH": 64}
    warps = rows // 8 if floats == "fp32" else rows // 16 if rows > 64 else 4
    for kind in ("int8", "e4m3"):
        constants = {**tile, "E4M3": kind == "e4m3"}
        yield (
            f"rounded_product.{floats}.{kind}.{rows}",
            KernelVariant("rounded_product", floats, constants, warps, stages),
        )
    if floats == "fp32":  # without tensor cores
        tile["DEPTH"], warps, stages = 32, 16 if rows > 64 else 8, 2
    yield f"int4_product.{floats}.{rows}", KernelVariant("int4_product", floats, tile, warps, stages)


def attention_tiles(target: int, floats: str, channels: int) -> AttentionTiles:
    """Return the largest tiles without spilled registers. Those of 9.0 were the fastest on an H100."""
    if channels == 512:
        return AttentionTiles(16, 16, 16, 1, 16) if floats == "fp32" else AttentionTiles(32, 16, 32, 1, 8)
    if floats == "fp32":
        return AttentionTiles(32 if channels == 64 else 16, 16, 16, 1)
    if channels == 256:
        return AttentionTiles(32, 16, 32, 2)
    if target == 90:
        return AttentionTiles(64, 32, 64, 2)
    if MAX_SHARED_KIB[target] > 99:
        return AttentionTiles(32, 32 if channels == 64 else 16, 64, 3)
    return AttentionTiles(32, 32, 64, 2)
