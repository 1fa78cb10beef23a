"""Safetensors files of a checkpoint as one lazy table of tensors.

Opening reads headers only. Values are read on request into the caller's memory. A mapped file would count as used
memory. torch is imported only for reading values, so that a bad checkpoint is rejected without it.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from lopa.export.checkpoint.safetensors_header import TensorHeader, headers_from_file
from lopa.export.json_file import json_object_from_file, shown
from lopa.runtime.errors import BadInputError, errors_as_bad_input

if TYPE_CHECKING:
    import torch

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_MATRIX_AXES = 2
_BLOCK_ITEMS = 1 << 20
"""Numbers that are compared at a time."""
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
    floating-point numbers. Raises it also for an index that places a tensor in a shard without it, and for files with
    different values of a tensor.
    """
    index, single = checkpoint / INDEX_NAME, checkpoint / SINGLE_NAME
    sharded = _tensors_from_index(index) if index.is_file() else {}
    stored = tensors_from_file(single) if single.is_file() else sharded
    if sharded and (odd := sorted(stored.keys() ^ sharded.keys())):
        raise _two_values(odd[0], single, index)
    for name, tensor in sharded.items():
        check_equal(stored[name], tensor)
    if stored:
        return stored
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
    stored = {name: shards[shard][name] for name, shard in weight_map.items()}
    # transformers reads every tensor of every shard, whether the index names it or not.
    for tensor in (tensor for shard in shards.values() for tensor in shard.values()):
        check_equal(stored.setdefault(tensor.name, tensor), tensor)
    return stored


def have_equal_values(first: CheckpointTensor, second: CheckpointTensor) -> bool:
    """Return True if two tensors have the same shape and numbers, read in blocks. NaN equals nothing."""
    import torch

    first, second = first.as_matrix(), second.as_matrix()
    count = max(1, _BLOCK_ITEMS // max(1, math.prod(first.shape[1:])))

    def rows(tensor: CheckpointTensor, start: int) -> "torch.Tensor":
        values = torch.empty(min(count, tensor.shape[0] - start), *tensor.shape[1:], dtype=tensor.dtype)
        tensor.read_rows(start, values)
        return values.double()

    starts = range(0, first.shape[0] if first.shape else 0, count)
    return first.shape == second.shape and all(torch.equal(rows(first, at), rows(second, at)) for at in starts)


def check_equal(first: StoredTensor, second: StoredTensor) -> None:
    """Raise BadInputError if two tensors of one name have different values."""
    if first != second and not have_equal_values(first, second):
        raise _two_values(first.name, first.file, second.file)


def _two_values(name: str, first: Path, second: Path) -> BadInputError:
    return BadInputError(
        f"{first} and {second} differ in the tensor {name}",
        expected="one file with each tensor, or equal values in all of them",
        remedy="remove the files that do not belong to this checkpoint. If both are there, transformers reads "
        f"{SINGLE_NAME} and not the index",
    )


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


_STACKED = re.compile(r"(?P<module>.*\.experts)\.(?P<kind>gate_up|gate|up|down)_proj(\.weight)?")
_STACKED_AXES = 3


def with_single_experts(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return `stored` with a separate tensor for each expert of stacked ones, and for gate and up of fused ones.

    transformers 5 and VeOmni stack matrices [experts, outputs, inputs]. gate_up_proj has the gate's outputs first.
    """
    found = dict[str, StoredTensor]()
    for name, tensor in stored.items():
        match = _STACKED.fullmatch(name)
        if match is None or len(tensor.shape) != _STACKED_AXES:
            check_equal(found.setdefault(name, tensor), tensor)
            continue
        kinds = match["kind"].split("_")
        experts, outputs, inputs = tensor.shape
        length = tensor.header.length // (experts * len(kinds))
        shape = (outputs // len(kinds), inputs)
        for i in range(experts * len(kinds)):
            header = TensorHeader(tensor.header.dtype, shape, tensor.header.offset + i * length, length)
            part = f"{match['module']}.{i // len(kinds)}.{kinds[i % len(kinds)]}_proj.weight"
            expert = StoredTensor(part, tensor.file, header)
            check_equal(found.setdefault(part, expert), expert)
    return found
