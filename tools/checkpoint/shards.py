"""Write safetensors files from tensors that are generated during writing.

The format has three parts: the header's length in 8 bytes (little-endian), the JSON header, and the values of all
tensors.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.checkpoint.tensors import ITEM_SIZE, RandomTensor, pieces_of_tensor

_ALIGNMENT = 8
"""Alignment of the values in bytes. The header is padded to a multiple of it."""

Shards = dict[str, list[RandomTensor]]
"""Tensors in order, by file name."""


def shards_from_tensors(tensors: Sequence[RandomTensor], max_bytes: int) -> Shards:
    """Distribute tensors, in order, over files with at most `max_bytes` of values each. A larger tensor has its own
    file."""
    groups: list[list[RandomTensor]] = []
    free = 0
    for tensor in tensors:
        size = tensor.items * ITEM_SIZE
        if not groups or size > free:
            groups.append([])
            free = max_bytes
        groups[-1].append(tensor)
        free -= size
    return {f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups)}


def index_of_shards(shards: Shards) -> dict[str, Any]:
    """Return the content of model.safetensors.index.json."""
    total = sum(tensor.items * ITEM_SIZE for tensors in shards.values() for tensor in tensors)
    weight_map = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
    return {"metadata": {"total_size": total}, "weight_map": weight_map}


def size_of_shard(tensors: Sequence[RandomTensor]) -> int:
    """Return the size in bytes of the file that write_shard creates."""
    return len(_header(tensors)) + sum(tensor.items for tensor in tensors) * ITEM_SIZE


def write_shard(path: Path, tensors: Sequence[RandomTensor], seed: int, wrote: Callable[[int], None]) -> None:
    """Write the new file `path` and sync it to disk. `wrote` receives the byte count of every write."""
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
