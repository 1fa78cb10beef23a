"""Header of a safetensors file, read and checked without touching the values.

A file has three parts: the header's length (8 bytes, little-endian), the header (a JSON object) and the values, which
have no gaps.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.export.json_file import shown
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import regular_file

ITEM_SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Bytes per number by the type's name in the format. Weights may have these types."""
PACKED_PARTS = (".qweight", ".qzeros", ".g_idx")
"""Endings of names of tensors with packed integers (lopa.export.checkpoint.packed_weights), whose type is I32."""
_WORDS = {"I32": 4}
_LENGTH_SIZE = 8
_MAX_LENGTH = 2**24
"""Maximum bytes of a header, enough for a hundred thousand tensors. The safetensors library allows six times as much.
"""
_MAX_AXES = 8
_MAX_ITEMS = 2**62
"""Limit for numbers along an axis and for bytes of a file."""
_METADATA = "__metadata__"
_COPY = "copy the checkpoint again; a download may have been interrupted"


@dataclass(frozen=True)
class TensorHeader:
    """Header entry of one tensor."""

    dtype: str
    """A key of ITEM_SIZES, or I32 for packed integers."""
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file to the values."""
    length: int
    """Bytes of the values."""


def headers_from_file(path: Path) -> dict[str, TensorHeader]:
    """Return the header of every tensor in the safetensors file `path`, by name.

    Raises BadInputError for a file that is missing, unreadable, truncated or of another format. Raises it also for a
    tensor that consists neither of floating-point numbers nor of packed integers.
    """
    with regular_file(path, expected="a readable safetensors file", remedy=_COPY) as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(_LENGTH_SIZE), "little")
        start = _LENGTH_SIZE + length
        if size < _LENGTH_SIZE or length > _MAX_LENGTH or start > size:
            raise _broken(path, f"it has {size} bytes and a header of {length}")
        text = file.read(length)
    headers = {name: _tensor_header(path, name, entry, start) for name, entry in _entries(path, text).items()}
    _check_without_gaps(path, headers, start, size)
    return headers


def _entries(path: Path, text: bytes) -> dict[str, Any]:
    """Return the header's entries without the metadata."""
    received = f"{path} is truncated or is not a safetensors file: its header is not JSON"
    with errors_as_bad_input(received, expected="a complete safetensors file", remedy=_COPY):
        entries = json.loads(text.decode("utf-8"), object_pairs_hook=_without_repeats)
    if not isinstance(entries, dict):
        raise _broken(path, "its header is not a JSON object")
    return {name: entry for name, entry in entries.items() if name != _METADATA}


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return one object of the header. Raises ValueError for repeated names and for names that UTF-8 cannot encode."""
    entries = dict(pairs)
    "".join(entries).encode("utf-8")
    if len(entries) != len(pairs):
        raise ValueError("a name occurs twice")
    return entries


def _tensor_header(path: Path, name: str, entry: object, start: int) -> TensorHeader:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise _broken(path, f"its header describes {name} as {shown(entry)}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    sizes = _WORDS if name.endswith(PACKED_PARTS) else ITEM_SIZES
    if not isinstance(dtype, str) or dtype not in sizes:
        raise BadInputError(
            f"{path}: {name} has the type {shown(dtype)}",
            expected=f"weights of the types {', '.join(ITEM_SIZES)}, or packed as by GPTQ or AWQ",
            remedy="export a checkpoint that is not quantized, or quantized by GPTQ or AWQ",
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise _broken(path, f"its header gives {name} the shape {shown(shape)} and the bytes {shown(offsets)}")
    length = math.prod(shape) * sizes[dtype]
    if offsets[1] - offsets[0] != length:
        raise _broken(path, f"its header gives {name}, {dtype} {shape}, the bytes {offsets}")
    return TensorHeader(dtype, tuple(shape), start + offsets[0], length)


def _are_sizes(values: object) -> bool:
    if not isinstance(values, list) or len(values) > _MAX_AXES:
        return False
    return all(type(value) is int and 0 <= value <= _MAX_ITEMS for value in values)


def _check_without_gaps(path: Path, headers: dict[str, TensorHeader], start: int, size: int) -> None:
    """Raise BadInputError unless the values follow one another from `start` to the end of the file."""
    end = start
    for name, header in sorted(headers.items(), key=lambda item: (item[1].offset, item[1].length)):
        if header.offset != end:
            raise _broken(path, f"the values of {name} begin at byte {header.offset}, not at {end}")
        end += header.length
    if end != size:
        raise _broken(path, f"it has {size} bytes, but its header describes {end}")


def _broken(path: Path, reason: str) -> BadInputError:
    return BadInputError(
        f"{path} is truncated or is not a safetensors file: {reason}",
        expected="a complete safetensors file",
        remedy=_COPY,
    )
