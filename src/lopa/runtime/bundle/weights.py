"""Weights of a bundle as memory-mapped arrays, and values of quantized ones."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import WEIGHT_ALIGNMENT, TensorRecord, scale_name
from lopa.runtime.contract import Float32, Floats, float32_from_stored, stored_dtype
from lopa.runtime.contract.float8 import float32_from_e4m3
from lopa.runtime.errors import BadInputError, errors_as_bad_input

Int8 = npt.NDArray[np.int8]


def values_from_integers(integers: Int8, scales: Floats) -> Float32:
    """Return float32 [.., inputs, outputs] from integers of that shape.

    `scales` is [.., outputs], or [.., inputs / block, outputs] for blockwise scales. Leading axes stack matrices.
    """
    *stacked, inputs, outputs = integers.shape
    count = 1 if scales.ndim == integers.ndim - 1 else scales.shape[-2]
    blocks = integers.reshape(*stacked, count, inputs // count, outputs)
    values: Float32 = blocks * scales.astype(np.float32).reshape(*stacked, count, 1, outputs)
    return values.reshape(integers.shape)


def int4_from_bytes(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Int8:
    """Unpack numbers from -8 to 7 from bytes in row-major order. Each byte holds two numbers, the first in its low
    half.
    """
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    signed: npt.NDArray[Any] = (halves ^ 8).astype(np.int8) - np.int8(8)
    return signed[: int(np.prod(shape))].reshape(shape)


_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8, "int4": 4, "float8e4m3fn": 8}


class BundleWeights(Mapping[str, Floats]):
    """Read-only weights by name (matrices [inputs, outputs]). Pages load on use.

    A float32 or float16 tensor is a view of the file. A bfloat16 or quantized tensor is converted to float32 on every
    access, so memory holds only the arrays that the caller keeps. Scales have no separate entry.
    """

    def __init__(self, data: npt.NDArray[np.uint8], records: Mapping[str, TensorRecord]) -> None:
        self._data = data
        self._records = records
        scales = {scale_name(name) for name, record in records.items() if record.is_quantized}
        self._names = [name for name in records if name not in scales]

    def __getitem__(self, name: str) -> Floats:
        record = self._records[name]
        stored = self._stored(record)
        if not record.is_quantized:
            return _floats(stored, record)
        shape, scale_record = tuple(record.shape), self._records[scale_name(name)]
        scales = _floats(self._stored(scale_record), scale_record)
        if record.dtype == "float8e4m3fn":
            values = float32_from_e4m3(stored).reshape(shape)
            values *= scales[..., None]
            return values.swapaxes(-1, -2)
        integers = int4_from_bytes(stored, shape) if record.dtype == "int4" else stored.reshape(shape)
        return values_from_integers(integers, scales)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def scales(self, name: str) -> Floats | None:
        """Return the scales of a quantized tensor, [.., outputs] or [.., inputs / block, outputs], or None for
        other tensors.
        """
        if not self._records[name].is_quantized:
            return None
        record = self._records[scale_name(name)]
        return _floats(self._stored(record), record)

    def packed(self, name: str) -> tuple[npt.NDArray[np.uint8], Floats]:
        """Return an int4 tensor as stored, two numbers per byte, and its scales [inputs / block, outputs]."""
        scales = self._records[scale_name(name)]
        return self._stored(self._records[name]), _floats(self._stored(scales), scales)

    def integers(self, name: str) -> tuple[Int8, Floats]:
        """Return an int8 tensor as stored, and its scales [.., outputs]."""
        record, scales = self._records[name], self._records[scale_name(name)]
        return self._stored(record).reshape(record.shape), _floats(self._stored(scales), scales)

    def _stored(self, record: TensorRecord) -> npt.NDArray[Any]:
        dtype = np.dtype(np.uint8) if record.dtype in ("int4", "float8e4m3fn") else stored_dtype(record.dtype)
        return self._data[record.offset : record.offset + record.length].view(dtype)


def _floats(stored: npt.NDArray[Any], record: TensorRecord) -> Floats:
    """Return an array with the shape of `record`. numpy float types stay unchanged, and bfloat16 becomes float32."""
    floats = float32_from_stored(stored) if record.dtype == "bfloat16" else stored
    return floats.reshape(record.shape)


def weights_from_bundle(bundle: Bundle) -> BundleWeights:
    """Return all weights of manifest.tensors.

    Raises BadInputError if a record does not match the file or the export's layout.
    """
    path = bundle.weights
    remedy = "export the checkpoint again"
    with errors_as_bad_input(str(path), expected="a weights file that can be mapped", remedy=remedy):
        data = np.memmap(path, np.uint8, mode="r")
    records = bundle.manifest.tensors
    for name, record in records.items():
        end = record.offset + record.length
        length = -(-math.prod(record.shape) * _BITS[record.dtype] // 8)
        if not 0 <= record.offset <= end <= data.size or record.length != length:
            raise BadInputError(
                f"the manifest of {bundle.path} puts {name} {record.dtype} {record.shape} at {record.offset}, "
                f"{record.length} bytes long",
                expected=f"a length that fits the shape, inside the {data.size} bytes of {bundle.weights.name}",
                remedy=remedy,
            )
    _check_layout(bundle, records)
    return BundleWeights(data, records)


def _check_layout(bundle: Bundle, records: Mapping[str, TensorRecord]) -> None:
    """Raise BadInputError unless the tensors are contiguous in their order, as every export writes them.

    An offset that differs would silently read another tensor, or parts of two.
    """
    expected = 0
    for name, record in records.items():
        if record.offset != expected:
            raise BadInputError(
                f"the manifest of {bundle.path} puts {name} at {record.offset}",
                expected=f"offset {expected}, the next multiple of {WEIGHT_ALIGNMENT} after the previous tensor",
                remedy="export the checkpoint again",
            )
        expected += -(-record.length // WEIGHT_ALIGNMENT) * WEIGHT_ALIGNMENT
