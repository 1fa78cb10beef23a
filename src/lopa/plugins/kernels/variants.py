"""Table of the kernels' variants: types, constants and tiles of every kernel that an archive contains."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import triton.language as tl

from lopa.plugins.kernels.branch_attention_kernel import attention_merge_kernel, branch_attention_kernel
from lopa.plugins.kernels.commit_kernel import commit_kernel
from lopa.plugins.kernels.rms_norm_kernel import rms_norm_kernel
from lopa.plugins.kernels.split_rotary_kernel import split_rotary_kernel
from lopa.plugins.kernels.swiglu_kernel import swiglu_kernel
from lopa.plugins.kernels.token_statistics_kernel import statistics_merge_kernel, statistics_partials_kernel

KERNELS: Mapping[str, tuple[Any, str]] = {
    "rms_norm": (rms_norm_kernel, "TTTTTaf"),
    "split_rotary": (split_rotary_kernel, "TTTaaTiTTTTTTTiiaaf"),
    "branch_attention": (branch_attention_kernel, "TTTTITFiiaif"),
    "attention_merge": (attention_merge_kernel, "FITiia"),
    "swiglu": (swiglu_kernel, "TTTaa"),
    "statistics_partials": (statistics_partials_kernel, "TFiiiFFFIF"),
    "statistics_merge": (statistics_merge_kernel, "FFFIFiLFF"),
    "commit": (commit_kernel, "Liiiiiiii"),
}
"""Kernels with the types of their arguments. T is a pointer to the variant's floats; F, I, L and B are pointers to
float32, int32, int64 and bool. Numbers are f (float32), i (int32) and a (int32, a multiple of 16)."""
ARGUMENT_TYPES = {"F": "*fp32", "I": "*i32", "L": "*i64", "B": "*i1", "f": "fp32", "i": "i32", "a": "i32"}
"""Triton's types of arguments other than T."""
FLOATS = ("fp32", "fp16", "bf16")
"""Types of rows, caches and weights."""
HEAD_CHANNELS = (64, 128, 256)
"""Channels of a head, rounded up."""
CANDIDATES = (8, 16, 32, 64)
"""Numbers of candidates of the token statistics."""
CHUNK_ROWS = 64
"""Rows of a chunk of a cache."""
MAX_SPLITS = 32
"""Maximum number of splits of the vocabulary."""
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


def variants(target: int) -> dict[str, KernelVariant]:
    """Return the variants for a target, e.g. 90, by name."""
    return dict(_variants(target))


def _variants(target: int) -> Iterator[tuple[str, KernelVariant]]:
    for floats in FLOATS:
        for block, warps in ((1024, 4), (4096, 8)):
            for skip, name in ((False, f"rms_norm.{floats}.{block}"), (True, f"rms_norm.{floats}.skip.{block}")):
                yield name, KernelVariant("rms_norm", floats, {"SKIP": skip, "BLOCK": block}, warps)
        for channels in HEAD_CHANNELS:
            for norm, name in ((False, f"split_rotary.{floats}"), (True, f"split_rotary.{floats}.norm")):
                constants = {"CHANNELS": channels, "NORM": norm}
                yield f"{name}.{channels}", KernelVariant("split_rotary", floats, constants, 1)
            tiles = attention_tiles(target, floats, channels)
            constants = {"CHANNELS": channels, "COLUMNS": tiles.columns, "OWN": tiles.own, "TILE": tiles.pairs}
            constants |= {"CHUNK_ROWS": CHUNK_ROWS}
            yield (
                f"branch_attention.{floats}.{channels}",
                KernelVariant("branch_attention", floats, constants, 4, tiles.stages),
            )
            name = f"attention_merge.{floats}.{channels}"
            yield name, KernelVariant("attention_merge", floats, {"CHANNELS": channels}, 4, 3)
        yield f"swiglu.{floats}", KernelVariant("swiglu", floats, {"BLOCK": 1024}, 4)
        for top in CANDIDATES:
            constants = {"TOP": top, "BLOCK": 512}
            yield f"statistics_partials.{floats}.{top}", KernelVariant("statistics_partials", floats, constants, 1)
    for top in CANDIDATES:
        constants = {"TOP": top, "PLACES": MAX_SPLITS}
        yield f"statistics_merge.{top}", KernelVariant("statistics_merge", "", constants, 1 if top < 32 else 4)
    for size, word in ((2, tl.int16), (4, tl.int32), (8, tl.int64)):
        yield f"commit.{size}", KernelVariant("commit", "", {"WORD": word, "WORDS": 256 // size, "ROWS": 8}, 4)


def attention_tiles(target: int, floats: str, channels: int) -> AttentionTiles:
    """Return the largest tiles without spilled registers. Those of 9.0 were the fastest on an H100."""
    if floats == "fp32":
        return AttentionTiles(32 if channels == 64 else 16, 16, 16, 1)
    if channels == 256:
        return AttentionTiles(32, 16, 32, 2)
    if target == 90:
        return AttentionTiles(64, 32, 64, 2)
    if MAX_SHARED_KIB[target] > 99:
        return AttentionTiles(32, 32 if channels == 64 else 16, 64, 3)
    return AttentionTiles(32, 32, 64, 2)
