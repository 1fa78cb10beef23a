"""Values of a checkpoint's tensor in float32, merged with the adapter, in blocks of rows.

One block at a time is in memory. It is small enough for a processor's cache.
"""

import math
from collections.abc import Iterator

import torch

from lopa.export.checkpoint.lora import LowRankProduct
from lopa.export.checkpoint.tensors import CheckpointTensor

_BLOCK_ITEMS = 1 << 20
"""Numbers read per block: 4 MiB in float32."""
_ROW_MULTIPLE = 32
"""Large blocks have a multiple of this many rows, so that results computed from them are aligned."""


def merged_blocks(
    origin: CheckpointTensor, product: LowRankProduct | None, columns: slice = slice(None), rows: range | None = None
) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the number of the first row and the values, float32 [count, *origin.shape[1:]], of each block.

    `columns` selects columns of a matrix; each block is read completely. `rows` selects rows, and their numbers begin
    at 0. The next block reuses the memory of the previous one. Raises BadInputError when a file cannot be read.
    """
    rows = range(origin.shape[0]) if rows is None else rows
    count = _rows_per_block(len(rows), math.prod(origin.shape[1:]))
    stored = torch.empty(count, *origin.shape[1:], dtype=origin.dtype)
    values = torch.empty_like(_columns(stored, columns), dtype=torch.float32, memory_format=torch.contiguous_format)
    if product is not None:
        up, down = product.up.read().float(), product.down.read().float()[:, columns]
    for start in range(rows.start, rows.stop, count):
        size = min(count, rows.stop - start)
        origin.read_rows(start, stored[:size])
        block = values[:size].copy_(_columns(stored[:size], columns))
        if product is not None:
            block += product.scale * (up[start : start + size] @ down)
        yield start - rows.start, block


def _rows_per_block(rows: int, width: int) -> int:
    count = max(1, _BLOCK_ITEMS // width)
    return min(rows, max(count // _ROW_MULTIPLE * _ROW_MULTIPLE, 1) if count >= _ROW_MULTIPLE else count)


def _columns(rows: torch.Tensor, columns: slice) -> torch.Tensor:
    return rows if columns == slice(None) else rows[:, columns]
