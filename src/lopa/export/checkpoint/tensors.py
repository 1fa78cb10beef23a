"""Safetensors files of a checkpoint as one lazy table of tensors.

Opening reads headers only. Values are read on request into the caller's memory. A mapped file would count as used
memory. torch is imported only for reading values, so that a bad checkpoint is rejected without it.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lopa.export.checkpoint.safetensors_header import TensorHeader, headers_from_file
from lopa.export.json_file import json_object_from_file, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import errors_as_bad_input

if TYPE_CHECKING:
    import torch

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_MATRIX_AXES = 2
_COPY = "copy the checkpoint again; a download may have been interrupted"


class CheckpointTensor(Protocol):
    """One tensor of a checkpoint, whose values are read on request."""

    @property
    def name(self) -> str:
        """Name in the checkpoint."""

    @property
    def file(self) -> Path:
        """File with the values."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""

    @property
    def dtype(self) -> "torch.dtype":
        """Type of the values that are read."""

    def as_matrix(self) -> "CheckpointTensor":
        """Return the same values with all axes but the last folded into rows; a vector stays a vector."""

    def read(self) -> "torch.Tensor":
        """Return all values."""

    def read_rows(self, start: int, rows: "torch.Tensor") -> None:
        """Fill `rows`, contiguous and of the tensor's dtype, with the rows that begin at number `start`."""


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in one file. Its header is loaded, and its values are read on request."""

    name: str
    file: Path
    header: TensorHeader

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the file."""
        return self.header.shape

    @property
    def dtype(self) -> "torch.dtype":
        """Type of the numbers."""
        import torch

        dtypes = {
            "F64": torch.float64,
            "F32": torch.float32,
            "F16": torch.float16,
            "BF16": torch.bfloat16,
            "I32": torch.int32,
        }
        return dtypes[self.header.dtype]

    def as_matrix(self) -> "StoredTensor":
        """Return the same values with all axes but the last folded into rows; a vector stays a vector."""
        if len(self.shape) <= _MATRIX_AXES:
            return self
        rows = math.prod(self.shape[:-1])
        return replace(self, header=replace(self.header, shape=(rows, self.shape[-1])))

    def read(self) -> "torch.Tensor":
        """Return all values in the file's dtype. Raises the errors of read_rows."""
        import torch

        values = torch.empty(self.header.length, dtype=torch.uint8)
        self._fill(values, self.header.offset)
        return values.view(self.dtype).reshape(self.shape)

    def read_rows(self, start: int, rows: "torch.Tensor") -> None:
        """Fill `rows` with the tensor's rows that begin at number `start`.

        `rows` is contiguous, [n, *shape[1:]], of the tensor's dtype. Raises BadInputError when the file cannot be read
        or has become shorter.
        """
        import torch

        row_size = self.header.length // self.shape[0]
        self._fill(rows.view(-1).view(torch.uint8), self.header.offset + start * row_size)

    def _fill(self, target: "torch.Tensor", offset: int) -> None:
        """Fill `target`, uint8 [n], with the file's bytes that begin at `offset`."""
        view = target.numpy().data
        try:
            with self.file.open("rb", buffering=0) as file:
                file.seek(offset)
                done = 0
                while done < len(view):
                    count = file.readinto(view[done:])
                    if not count:
                        raise OSError(None, f"it ends before byte {offset + len(view)}")
                    done += count
        except OSError as error:
            raise BadInputError(
                f"{self.file} cannot be read for {self.name}: {error.strerror}",
                expected="a file that does not change during the export",
                remedy=_COPY,
            ) from error


def tensors_from_checkpoint(checkpoint: Path) -> dict[str, StoredTensor]:
    """Return every tensor of the folder `checkpoint`, from model.safetensors or from the shards that its index names.

    Raises BadInputError for a folder without weights, a missing or truncated shard, and weights that are not
    floating-point numbers. Raises it also for an index that places a tensor in a shard without it.
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
        remedy="check the path; convert pickled weights (.bin) to safetensors first, they are never opened",
    )


def tensors_from_file(path: Path) -> dict[str, StoredTensor]:
    """Return every tensor of one safetensors file.

    Raises BadInputError for a file that is missing, truncated or of another format, and for weights that are not
    floating-point numbers.
    """
    return {name: StoredTensor(name, path, header) for name, header in headers_from_file(path).items()}


def _tensors_from_index(index: Path) -> dict[str, StoredTensor]:
    weight_map = json_object_from_file(index, remedy=_COPY).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadInputError(f"{index} has no weight_map", expected="a weight_map from tensors to shards", remedy=_COPY)
    paths = {shard: _shard_path(index, shard) for shard in sorted(set(weight_map.values()))}
    _check_shards(index, list(paths.values()))
    shards = {shard: tensors_from_file(path) for shard, path in paths.items()}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise BadInputError(
                f"{index} places {shown(name)} in {shown(shard)}, which does not have it",
                expected="an index that agrees with its shards",
                remedy=_COPY,
            )
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _check_shards(index: Path, paths: list[Path]) -> None:
    """Raise BadInputError if shards are missing, before the first one is read."""
    hints = {"expected": f"all {len(paths)} shards that {index.name} names", "remedy": _COPY}
    with errors_as_bad_input(f"the shards of {index}", **hints):
        missing = [path for path in paths if not path.exists()]
    if missing:
        more = f", nor do {len(missing) - 1} more" if missing[1:] else ""
        raise BadInputError(
            f"{missing[0]} does not exist{more}",
            expected=hints["expected"],
            remedy="download the missing files: 'hf download' resumes where it stopped",
        )


def _shard_path(index: Path, shard: str) -> Path:
    if Path(shard).name != shard or shard == "..":
        raise BadInputError(
            f"{index} names the shard {shown(shard)}", expected="a file name in the same folder", remedy=_COPY
        )
    return index.parent / shard
