"""The safetensors files of a checkpoint as one lazy table of tensors. Does not know what a tensor is for.

Nothing is read but the headers until values are asked for, and then they are read into memory of the caller's choice:
a mapped file would count as memory as a whole. torch is imported only then: a checkpoint that cannot be exported is
refused without it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lopa.export.checkpoint.safetensors_header import TensorHeader, headers_from_file
from lopa.export.json_file import json_object_from_file, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import refused_as_bad_input

if TYPE_CHECKING:
    import torch

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
_COPY = "copy the checkpoint again; a download may have stopped half-way"


@dataclass(frozen=True)
class StoredTensor:
    """One tensor in one file: its header now, its values on request."""

    name: str
    file: Path
    header: TensorHeader

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return self.header.shape

    @property
    def dtype(self) -> "torch.dtype":
        """The type of its numbers."""
        import torch

        dtypes = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        return dtypes[self.header.dtype]

    def read(self) -> "torch.Tensor":
        """All values, in the file's dtype. Raises BadInputError as read_rows does."""
        import torch

        values = torch.empty(self.header.length, dtype=torch.uint8)
        self._fill(values, self.header.offset)
        return values.view(self.dtype).reshape(self.shape)

    def read_rows(self, start: int, rows: "torch.Tensor") -> None:
        """Fill `rows` with the tensor's rows from number `start` on.

        `rows` is contiguous, [n, *shape[1:]], of the tensor's dtype. Raises BadInputError when the file cannot be read
        or has become shorter since its header was.
        """
        import torch

        row_size = self.header.length // self.shape[0]
        self._fill(rows.view(-1).view(torch.uint8), self.header.offset + start * row_size)

    def _fill(self, target: "torch.Tensor", offset: int) -> None:
        """Fill `target`, uint8 [n], with the file's bytes from `offset` on."""
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
                expected="a file that stays as it is until the export is done",
                remedy=_COPY,
            ) from error


def tensors_from_checkpoint(checkpoint: Path) -> dict[str, StoredTensor]:
    """Every tensor of the folder `checkpoint`, from model.safetensors or from the shards that its index names.

    Raises BadInputError for a folder without weights, a missing or truncated shard, an index that names a tensor which
    its shard does not have, and weights that are not floating-point numbers.
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

    Raises BadInputError for a file that is missing, truncated or of another format, and for weights that are not
    floating-point numbers.
    """
    return {name: StoredTensor(name, path, header) for name, header in headers_from_file(path).items()}


def _tensors_from_index(index: Path) -> dict[str, StoredTensor]:
    weight_map = json_object_from_file(index, remedy=_COPY).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise BadInputError(f"{index} has no weight_map", expected="a table from tensor to shard", remedy=_COPY)
    paths = {shard: _shard_path(index, shard) for shard in sorted(set(weight_map.values()))}
    _check_shards(index, list(paths.values()))
    shards = {shard: tensors_from_file(path) for shard, path in paths.items()}
    for name, shard in weight_map.items():
        if name not in shards[shard]:
            raise BadInputError(
                f"{index} says that {shown(name)} is in {shown(shard)}, which does not have it",
                expected="an index that agrees with its shards",
                remedy=_COPY,
            )
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def _check_shards(index: Path, paths: list[Path]) -> None:
    """Raise BadInputError where shards are missing: all of them are known before the first is read."""
    words = {"expected": f"all {len(paths)} shards that {index.name} names", "remedy": _COPY}
    with refused_as_bad_input(f"the shards of {index}", **words):
        missing = [path for path in paths if not path.exists()]
    if missing:
        more = f", nor do {len(missing) - 1} more" if missing[1:] else ""
        raise BadInputError(
            f"{missing[0]} does not exist{more}",
            expected=words["expected"],
            remedy="download the missing ones: 'hf download' run again goes on where it stopped",
        )


def _shard_path(index: Path, shard: str) -> Path:
    if Path(shard).name != shard or shard == "..":
        raise BadInputError(
            f"{index} names the shard {shown(shard)}", expected="a file name in the same folder", remedy=_COPY
        )
    return index.parent / shard
