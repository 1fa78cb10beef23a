"""Unpack int4 matrices with blockwise scales to int8 matrices with one scale per output, for 8-bit products.

The added error is at most half an int8 step. Matrices are unpacked in chunks that fit a processor's cache. Peak memory
is little more than the size of the result.
"""

import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.dequantize import Int8
from lopa.runtime.bundle.manifest import Manifest, scale_name
from lopa.runtime.bundle.temporary_memory import aligned_size, temporary_memory
from lopa.runtime.bundle.weights import weights_from_bundle
from lopa.runtime.contract import Float32, Floats
from lopa.runtime.contract.model_part import ModelPart

Bytes = npt.NDArray[np.uint8]

_MAX_INT8 = 127
_MIN_SCALE = np.float32(2.0**-126)
"""Smallest scale that is not flushed to zero. It applies if all values are (nearly) zero."""
_CHUNK = 2048
"""Bytes per row of a chunk; 32 rows are half a megabyte of floats."""
_SIXTEENTH = np.float32(1 / 16)


@dataclass(frozen=True, eq=False)
class UnpackedMatrices:
    """Integers and scales by their names in a graph.

    The integers are in an unnamed temporary file that exists until the last of them is freed. The system may reclaim
    its memory after the engine has made its own copies.
    """

    arrays: dict[str, npt.NDArray[Any]]
    mapped: mmap.mmap

    def release_memory(self) -> None:
        """Release the integers' memory if the system supports it. They stay in the file."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def int4_tensor_names(manifest: Manifest, part: ModelPart) -> list[str]:
    """Return the int4 matrices of the layers of `part`, and of the vocabulary projection if `part` is last."""
    prefixes = [f"layers.{layer}." for layer in range(part.first, part.end)] + ["head."] * part.is_last
    names = (name for name, record in manifest.tensors.items() if record.dtype == "int4")
    return [name for name in names if name.startswith(tuple(prefixes))]


def unpack_matrices(bundle: Bundle, part: ModelPart) -> UnpackedMatrices:
    """Return all matrices of `int4_tensor_names`, unpacked one at a time.

    Raises BadInputError if the temporary folder is full, or if weights do not match their records.
    """
    weights = weights_from_bundle(bundle)
    shapes = {name: tuple(bundle.manifest.tensors[name].shape) for name in int4_tensor_names(bundle.manifest, part)}
    sizes = {name: aligned_size(inputs * outputs) for name, (inputs, outputs) in shapes.items()}
    mapped = temporary_memory(
        sum(sizes.values()),
        "unpacked int4 matrices",
        "free disk space, set TMPDIR to another folder, or set LOPA_WEIGHTS=packed, which is slower",
    )
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, (inputs, outputs) in shapes.items():
        integers = np.frombuffer(mapped, np.int8, inputs * outputs, offset).reshape(inputs, outputs)
        arrays[scale_name(name)] = unpack_int4(*weights.packed(name), integers)
        arrays[name] = integers
        offset += sizes[name]
    return UnpackedMatrices(arrays, mapped)


def unpack_int4(packed: Bytes, scales: Floats, integers: Int8) -> Float32:
    """Write int8 numbers from -127 to 127 to `integers` [inputs, outputs], and return their scales, float32 [outputs].

    `packed` is uint8 [inputs x outputs / 2] in row-major order, with two numbers per byte, the first in the low half.
    `scales` is [inputs / block, outputs], with an even block.
    """
    outputs = integers.shape[1]
    rows = 1 + outputs % 2  # if the number of outputs is odd, two rows together fill whole bytes
    blocks = packed.reshape(len(scales), -1, rows * outputs // 2)
    steps = np.tile(scales.astype(np.float32) * _SIXTEENTH, rows)
    maxima = np.zeros(rows * outputs, np.float32)
    for block, step in zip(blocks, steps, strict=True):
        for parity, sixteenfold in enumerate(_halves(block)):
            high, low = (array.astype(np.float32) for array in (sixteenfold.max(axis=0), sixteenfold.min(axis=0)))
            found = maxima[parity::2]
            np.maximum(found, np.maximum(high, -low) * step[parity::2], out=found)
    column_scales: Float32 = np.maximum(maxima.reshape(rows, outputs).max(axis=0) / _MAX_INT8, _MIN_SCALE)
    steps /= np.tile(column_scales, rows)
    written = integers.reshape(len(scales), -1, rows * outputs)
    for block, step, numbers in zip(blocks, steps, written, strict=True):
        for first in range(0, block.shape[1], _CHUNK):
            columns = slice(2 * first, 2 * (first + _CHUNK))
            for parity, sixteenfold in enumerate(_halves(block[:, first : first + _CHUNK])):
                scaled = sixteenfold * step[columns][parity::2]
                np.rint(scaled, out=numbers[:, columns][:, parity::2], casting="unsafe")
    return column_scales


def _halves(packed: Bytes) -> tuple[Int8, Int8]:
    """Return 16 times the first and 16 times the second number of each byte. This avoids shifts with sign extension."""
    return (packed << 4).view(np.int8), (packed & 0xF0).view(np.int8)
