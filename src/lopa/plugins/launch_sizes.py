"""Sizes of the kernels' tiles and launches. This module imports neither torch nor Triton."""

from dataclasses import dataclass
from typing import Literal

Floats = Literal["fp32", "fp16", "bf16"]
"""Types of hidden rows, caches and weights."""
MIN_CHANNELS = 16
"""Minimum side of a tile product."""
MAX_SPLITS = 128
"""Maximum number of splits of the vocabulary, about the number of programs that a large GPU runs at once."""
SPLIT_COLUMNS = 128
"""Minimum number of vocabulary columns per split."""
COMMIT_ROWS = 32
"""Rows per program of the commit kernel."""


@dataclass(frozen=True)
class AttentionTiles:
    """Tile sizes of a program, powers of two from 16."""

    rows: int
    """Packed rows per program: branches x query heads of a group x window rows."""
    columns: int
    """Keys per step."""


@dataclass(frozen=True)
class HeadTiles:
    """Tile sizes of a program, powers of two from 16."""

    rows: int
    columns: int
    """Columns of the vocabulary per step."""
    inner: int
    """Channels of the hidden size per step."""


def attention_tiles(floats: Floats) -> AttentionTiles:
    """Return tiles that need at most 48 KiB of shared memory with heads of 128."""
    return AttentionTiles(32, 32) if floats == "fp32" else AttentionTiles(64, 32)


def head_tiles(floats: Floats) -> HeadTiles:
    """Return tiles that need at most 48 KiB of shared memory."""
    return HeadTiles(64, 64, 32) if floats == "fp32" else HeadTiles(64, 128, 64)
