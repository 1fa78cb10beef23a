"""int4 matrices with scales of blocks -> int8 matrices with one scale for each output: for products of 8 bits.

An error of at most half a step of int8 comes on top of that of four bits. Works in pieces that stay in a processor's
cache, so that little more than the result is in memory. Does not know who multiplies them.
"""

import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.dequantize import Int8
from lopa.runtime.bundle.manifest import Manifest, scale_name
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.contract import Float32, Floats
from lopa.runtime.contract.model_part import ModelPart
from lopa.runtime.errors import BadInputError

Bytes = npt.NDArray[np.uint8]

_GREATEST = 127
_MIN_SCALE = np.float32(2.0**-126)
"""Where all values are (nearly) zero: the least that is not flushed to zero."""
_PIECE = 2048
"""Bytes of a row in a piece: with 32 rows half a megabyte of floats."""
_SIXTEENTH = np.float32(1 / 16)


_ALIGNMENT = 64
"""Bytes, of a matrix in the temporary file: a line of a processor's cache."""


@dataclass(frozen=True, eq=False)
class UnpackedMatrices:
    """Integers and scales by the names that a graph has for them.

    The integers are in a temporary file without a name, which goes with the last of them: the system may take the
    memory back once somebody has copies of its own, and reads them again if it must.
    """

    arrays: dict[str, npt.NDArray[Any]]
    mapped: mmap.mmap

    def leave_memory(self) -> None:
        """Let go of the integers' memory, where the system knows how; they stay in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def names_of_int4(manifest: Manifest, part: ModelPart) -> list[str]:
    """The int4 matrices of the layers of `part`, with the product with the vocabulary if it is the last."""
    prefixes = [f"layers.{layer}." for layer in range(part.first, part.end)] + ["head."] * part.is_last
    names = (name for name, record in manifest.tensors.items() if record.dtype == "int4")
    return [name for name in names if name.startswith(tuple(prefixes))]


def unpacked_matrices(bundle: Bundle, part: ModelPart) -> UnpackedMatrices:
    """All of `names_of_int4`, unpacked one after the other.

    Raises BadInputError when the temporary folder has no room, or for weights that do not fit their records.
    """
    weights = weights_from_bundle(bundle)
    shapes = {name: tuple(bundle.manifest.tensors[name].shape) for name in names_of_int4(bundle.manifest, part)}
    sizes = {name: -(-inputs * outputs // _ALIGNMENT) * _ALIGNMENT for name, (inputs, outputs) in shapes.items()}
    mapped = _temporary_memory(sum(sizes.values()))
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, (inputs, outputs) in shapes.items():
        integers = np.frombuffer(mapped, np.int8, inputs * outputs, offset).reshape(inputs, outputs)
        arrays[scale_name(name)] = unpack_int4(*weights.packed(name), integers)
        arrays[name] = integers
        offset += sizes[name]
    return UnpackedMatrices(arrays, mapped)


def _temporary_memory(size: int) -> mmap.mmap:
    """Zeros, in a file that nobody else sees and that is gone when nothing refers to the result."""
    try:
        with tempfile.TemporaryFile(prefix="lopa-int4-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk is found here, not by a signal later
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise BadInputError(
            f"no temporary file of {size / 1e9:.2f} GB for int4 matrices unpacked: {error}",
            expected="a temporary folder with that much room, for as long as the bundle is open",
            remedy="make room, name another folder in TMPDIR, or set LOPA_INT4=packed, which is slower",
        ) from error


def unpack_int4(packed: Bytes, scales: Floats, integers: Int8) -> Float32:
    """Write int8 numbers from -127 to 127 to `integers` [inputs, outputs]; their scales, float32 [outputs].

    `packed` is uint8 [inputs x outputs / 2], two numbers a byte, the first in the low half, in the order of the rows;
    `scales` [inputs / block, outputs], with an even block.
    """
    outputs = integers.shape[1]
    rows = 1 + outputs % 2  # as many as fill whole bytes, taken for one
    blocks = packed.reshape(len(scales), -1, rows * outputs // 2)
    steps = np.tile(scales.astype(np.float32) * _SIXTEENTH, rows)
    greatest = np.zeros(rows * outputs, np.float32)
    for block, step in zip(blocks, steps, strict=True):
        for parity, sixteenfold in enumerate(_halves(block)):
            upper, lower = (array.astype(np.float32) for array in (sixteenfold.max(axis=0), sixteenfold.min(axis=0)))
            found = greatest[parity::2]
            np.maximum(found, np.maximum(upper, -lower) * step[parity::2], out=found)
    column_scales: Float32 = np.maximum(greatest.reshape(rows, outputs).max(axis=0) / _GREATEST, _MIN_SCALE)
    steps /= np.tile(column_scales, rows)
    written = integers.reshape(len(scales), -1, rows * outputs)
    for block, step, numbers in zip(blocks, steps, written, strict=True):
        for first in range(0, block.shape[1], _PIECE):
            columns = slice(2 * first, 2 * (first + _PIECE))
            for parity, sixteenfold in enumerate(_halves(block[:, first : first + _PIECE])):
                scaled = sixteenfold * step[columns][parity::2]
                np.rint(scaled, out=numbers[:, columns][:, parity::2], casting="unsafe")
    return column_scales


def _halves(packed: Bytes) -> tuple[Int8, Int8]:
    """16 times the first and 16 times the second number of each byte, which is quicker than the numbers."""
    return (packed << 4).view(np.int8), (packed & 0xF0).view(np.int8)
