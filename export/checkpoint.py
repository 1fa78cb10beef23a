"""The safetensors files of a checkpoint as one lazy table of tensors. Does not know what a tensor is for.

Nothing is read but the headers until a tensor is asked for, and then it is mapped from the file, not copied.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from lopa.export.json_file import json_object_from_file
from lopa.runtime.errors import BadInputError

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_COPY = "copy the checkpoint again; a download may have stopped half-way"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in one file: its header now, its values on request."""

    name: str
    shape: tuple[int, ...]
    file: Path
    _handle: Any

    def read(self) -> torch.Tensor:
        """The values, in the file's dtype and mapped from the file."""
        tensor: torch.Tensor = self._handle.get_tensor(self.name)
        return tensor


def tensors_from_checkpoint(checkpoint: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder `checkpoint`, from model.safetensors or from the shards that its index names.

    Raises BadInputError for a folder without weights, a missing or truncated shard, and an index that names a tensor
    which its shard does not have.
    """
    index = checkpoint / INDEX_NAME
    if index.is_file():
        return _tensors_from_index(index)
    single = checkpoint / SINGLE_NAME
    if single.is_file():
        return tensors_from_file(single)
    raise BadInputError(
        f"{checkpoint} has neither {SINGLE_NAME} nor {INDEX_NAME}",
        expected="a checkpoint folder with safetensors weights",
        remedy="check the path; convert pickled weights (.bin) to safetensors first, they are never opened here",
    )


def tensors_from_file(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one safetensors file.

    Raises BadInputError for a file that is missing, truncated or of another format.
    """
    try:
        handle: Any = safe_open(path, framework="pt")
    except FileNotFoundError as error:
        raise BadInputError(f"{path} does not exist", expected="a safetensors file", remedy=_COPY) from error
    except (SafetensorError, OSError) as error:
        raise BadInputError(
            f"{path} is truncated or is not a safetensors file: {error}",
            expected="a whole safetensors file",
            remedy=_COPY,
        ) from error
    names: list[str] = handle.keys()
    return {name: StoredTensor(name, tuple(handle.get_slice(name).get_shape()), path, handle) for name in names}


def _tensors_from_index(index: Path) -> dict[str, StoredTensor]:
    weight_map = json_object_from_file(index, remedy=_COPY).get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadInputError(f"{index} has no weight_map", expected="a table from tensor to shard", remedy=_COPY)
    shards = {shard: tensors_from_file(_shard_path(index, shard)) for shard in sorted(set(weight_map.values()))}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise BadInputError(
                f"{index} says that {name} is in {shard}, which does not have it",
                expected="an index that agrees with its shards",
                remedy=_COPY,
            )
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _shard_path(index: Path, shard: str) -> Path:
    if Path(shard).name != shard:
        raise BadInputError(
            f"{index} names the shard {shard!r}", expected="a file name in the same folder", remedy=_COPY
        )
    return index.parent / shard
