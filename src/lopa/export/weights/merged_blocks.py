"""The values of one tensor of a checkpoint in float32, its adapter merged, some rows at a time in the file's order.

Never more than one block is in memory, small enough for a processor's cache. Does not know what becomes of the values.
"""

import math
from collections.abc import Iterator

import torch

from lopa.export.checkpoint.lora import LowRankProduct
from lopa.export.checkpoint.tensors import StoredTensor

_BLOCK_ITEMS = 1 << 20
"""Numbers read at a time: 4 MiB in float32."""
_EVEN_ROWS = 32
"""Blocks have a multiple of this many rows where they can, so that what is made of them is aligned."""


def merged_blocks(
    origin: StoredTensor, product: LowRankProduct | None, columns: slice = slice(None)
) -> Iterator[tuple[int, torch.Tensor]]:
    """Number of the first row and values, float32 [rows, *origin.shape[1:]], of block after block.

    `columns` are those wanted of a matrix; each block is read whole. The next block takes the memory of the last one.
    Raises BadInputError when a file cannot be read.
    """
    rows = origin.shape[0]
    count = _rows_of_block(rows, math.prod(origin.shape[1:]))
    stored = torch.empty(count, *origin.shape[1:], dtype=origin.dtype)
    values = torch.empty_like(_columns(stored, columns), dtype=torch.float32, memory_format=torch.contiguous_format)
    if product is not None:
        up, down = product.up.read().float(), product.down.read().float()[:, columns]
    for start in range(0, rows, count):
        size = min(count, rows - start)
        origin.read_rows(start, stored[:size])
        block = values[:size].copy_(_columns(stored[:size], columns))
        if product is not None:
            block += product.scale * (up[start : start + size] @ down)
        yield start, block


def _rows_of_block(rows: int, width: int) -> int:
    count = max(1, _BLOCK_ITEMS // width)
    return min(rows, max(count // _EVEN_ROWS * _EVEN_ROWS, 1) if count >= _EVEN_ROWS else count)


def _columns(rows: torch.Tensor, columns: slice) -> torch.Tensor:
    return rows if columns == slice(None) else rows[:, columns]
