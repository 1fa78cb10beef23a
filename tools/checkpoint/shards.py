"""Writes safetensors files from tensors that are made while writing. Does not know what the tensors are for.

The format: the header's length in 8 bytes, little-endian; the header, JSON; the values, one tensor behind the other.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.checkpoint.tensors import ITEM_SIZE, RandomTensor, pieces_of_tensor

_ALIGNMENT = 8
"""Bytes: the header is padded to a multiple, so that the values are aligned."""

Shards = dict[str, list[RandomTensor]]
"""File name -> its tensors, in order."""


def shards_from_tensors(tensors: Sequence[RandomTensor], max_bytes: int) -> Shards:
    """Spread tensors, in order, over files with at most `max_bytes` of values, or one tensor that is larger."""
    groups: list[list[RandomTensor]] = []
    room = 0
    for tensor in tensors:
        size = tensor.items * ITEM_SIZE
        if not groups or size > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(tensor)
        room -= size
    return {f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups)}


def index_of_shards(shards: Shards) -> dict[str, Any]:
    """The content of model.safetensors.index.json."""
    total = sum(tensor.items * ITEM_SIZE for tensors in shards.values() for tensor in tensors)
    weight_map = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def size_of_shard(tensors: Sequence[RandomTensor]) -> int:
    """Bytes of the file that write_shard makes."""
    return len(_header(tensors)) + sum(tensor.items for tensor in tensors) * ITEM_SIZE


def write_shard(path: Path, tensors: Sequence[RandomTensor], seed: int, wrote: Callable[[int], None]) -> None:
    """Write the new file `path`, and see it on the disk; `wrote` hears the bytes of every write."""
    with path.open("wb") as file:
        wrote(file.write(_header(tensors)))
        for tensor in tensors:
            for piece in pieces_of_tensor(tensor, seed):
                wrote(file.write(piece.astype("<u2", copy=False).data.cast("B")))
        file.flush()
        os.fsync(file.fileno())


def _header(tensors: Sequence[RandomTensor]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for tensor in tensors:
        end = start + tensor.items * ITEM_SIZE
        entries[tensor.name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
