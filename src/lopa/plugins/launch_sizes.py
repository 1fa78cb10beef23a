"""Sizes of the kernels' tiles and of their launches. Knows numbers only; imports neither torch nor Triton."""

from dataclasses import dataclass
from typing import Literal

Floats = Literal["fp32", "fp16", "bf16"]
"""Types of hidden rows, caches and weights."""
MIN_CHANNELS = 16
"""The smallest side of a product of tiles."""
MAX_SPLITS = 128
"""Of the vocabulary: about as many programs as a large GPU runs at once, for the fewest rows."""
SPLIT_COLUMNS = 128
"""Of the vocabulary, at least, for one split."""
COMMIT_ROWS = 32
"""Rows of a program of the commit kernel."""


@dataclass(frozen=True)
class AttentionTiles:
    """Sizes of a program's tiles, powers of two from 16."""

    rows: int
    """Packed rows of a program: branches x query heads of a group x window rows."""
    columns: int
    """Keys of a step."""


@dataclass(frozen=True)
class HeadTiles:
    """Sizes of a program's tiles, powers of two from 16."""

    rows: int
    columns: int
    """Of the vocabulary."""
    inner: int
    """Of the hidden size."""


def attention_tiles(floats: Floats) -> AttentionTiles:
    """Those whose shared memory is at most 48 KiB with heads of 128."""
    return AttentionTiles(32, 32) if floats == "fp32" else AttentionTiles(64, 32)


def head_tiles(floats: Floats) -> HeadTiles:
    """Those whose shared memory is at most 48 KiB."""
    return HeadTiles(64, 64, 32) if floats == "fp32" else HeadTiles(64, 128, 64)


def splits_from_vocabulary(vocabulary: int) -> int:
    """Into how many parts the vocabulary is cut."""
    return min(MAX_SPLITS, -(-vocabulary // SPLIT_COLUMNS))
