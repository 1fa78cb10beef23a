"""Graph and matrices with which WebGPU runs a bundle, so that quantized weights stay 4 or 8 bits in device memory.

ONNX Runtime's WebGPU provider does not fuse DequantizeLinear and MatMul. It would write every matrix as floats in each
forward. The twin of a quantized graph multiplies by MatMulNBits, whose matrices have another order than the weights
file. They are computed from the mapped file when a session opens. The twin of a graph with canvases also has another
form of attention.
"""

import mmap
import os
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest, TensorRecord, scale_name
from lopa.runtime.bundle.weights import BundleWeights, Int8, weights_from_bundle
from lopa.runtime.contract import Floats
from lopa.runtime.errors import BadInputError, raise_if_from_handler

Bytes = npt.NDArray[np.uint8]

WEBGPU_BLOCK = 32
"""Number of inputs that share a scale in MatMulNBits. For int8 it is much faster than longer blocks."""
_CHUNK_BYTES = 1 << 20
"""Bytes of a matrix that are reordered at once; they and their copies fit a processor's cache."""
_INT4_ZERO, _INT8_ZERO = 0x88, 0x80
"""Bits that differ between signed numbers and numbers around 8 (two in a byte) or around 128."""


def webgpu_bundle(bundle: Bundle) -> Bundle:
    """Return the bundle with the graph that WebGPU runs: the portable one, with canvases the standard one.

    Raises BadInputError if the bundle has no such graph.
    """
    return bundle.with_dialect("portable" if bundle.manifest.dimensions.canvas is None else "standard")


def webgpu_graph(bundle: Bundle) -> Path:
    """Return the path of the graph for WebGPU: the twin if there is one, or the graph of `webgpu_bundle`.

    Raises BadInputError like `webgpu_bundle`.
    """
    found = webgpu_bundle(bundle)
    return found.twin("webgpu") or found.graph


def webgpu_initializers(bundle: Bundle) -> dict[str, npt.NDArray[Any]]:
    """Return the matrices and scales that a session passes to `webgpu_graph` (`add_external_initializers`), by name.

    The dictionary is empty if the graph needs none. Drop the arrays after the session has opened. Raises BadInputError
    like `reordered_matrices` and `webgpu_bundle`.
    """
    found = webgpu_bundle(bundle)
    if found.twin("webgpu") is None:
        return {}
    return reordered_matrices(found, webgpu_tensor_names(found.manifest))


def reordered_matrices(bundle: Bundle, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return the quantized matrices `names` and their scales in the order of MatMulNBits, by name.

    Stacked matrices of experts have the names of `parts_of_matrix`. The matrices are in an unnamed temporary file,
    which exists until the last array is freed. Raises BadInputError if the temporary folder is full, and if weights do
    not match their records.
    """
    if not names:
        return {}
    manifest, weights = bundle.manifest, weights_from_bundle(bundle)
    records = {name: manifest.tensors[name] for name in names}
    sizes = {name: aligned_size(record.length) for name, record in records.items()}
    memory = temporary_memory(
        sum(sizes.values()), "matrices in the order of MatMulNBits", "free disk space, or set TMPDIR to another folder"
    )
    arrays: dict[str, npt.NDArray[Any]] = {}
    offset = 0
    for name, record in records.items():
        parts = parts_of_matrix(name, record)
        blocks, outputs = record.shape[-2] // WEBGPU_BLOCK, record.shape[-1]
        matrices = np.frombuffer(memory, np.uint8, record.length, offset).reshape(len(parts), outputs, blocks, -1)
        for part, matrix, scales in zip(parts, matrices, _reordered(weights, name, record, matrices), strict=True):
            arrays[part] = matrix
            dtype = np.float16 if manifest.dtype == "float16" else np.float32
            arrays[scale_name(part)] = scales.astype(dtype, copy=False)
        offset += sizes[name]
    return arrays


def webgpu_tensor_names(manifest: Manifest) -> list[str]:
    """Return the quantized matrices that MatMulNBits multiplies by, in their order."""
    return [name for name, record in manifest.tensors.items() if is_reordered(record)]


def is_reordered(record: TensorRecord) -> bool:
    """Return True for a quantized matrix of whole blocks. WebGPU dequantizes other int8 matrices in each forward."""
    return record.dtype in ("int8", "int4") and record.shape[-2] % WEBGPU_BLOCK == 0


def parts_of_matrix(name: str, record: TensorRecord) -> list[str]:
    """Return the names of a matrix in a graph: one for each expert of a stacked one [E, inputs, outputs]."""
    *experts, _, _ = record.shape
    return [f"{name}.{expert}" for expert in range(*experts)] if experts else [name]


def _reordered(weights: BundleWeights, name: str, record: TensorRecord, matrices: Bytes) -> Iterator[Floats]:
    """Write matrices in the order of MatMulNBits to `matrices`. Yield the scales [outputs, blocks] of each."""
    count, outputs, blocks, _ = matrices.shape
    is_int4 = record.dtype == "int4"
    stored, scales = weights.packed(name) if is_int4 else weights.integers(name)
    each = zip(stored.reshape(count, -1), scales.reshape(count, -1, outputs), matrices, strict=True)
    for numbers, factors, matrix in each:
        if is_int4:
            reorder_int4(numbers.view(np.uint8), matrix)
        else:
            reorder_int8(numbers.view(np.int8), matrix)
        yield np.ascontiguousarray(np.broadcast_to(factors.T, (outputs, blocks)))


def reorder_int4(packed: Bytes, matrix: Bytes) -> None:
    """Write int4 numbers to `matrix`, uint8 [outputs, blocks, 16].

    `packed` is [inputs x outputs / 2] in row-major order, with two numbers per byte, the first in the low half. In
    `matrix` a byte has the numbers of two neighboring inputs, the first in the low half, plus 8.
    """
    outputs, blocks, _ = matrix.shape
    rows = packed.reshape(blocks, -1)
    for some in _chunks(blocks, WEBGPU_BLOCK * outputs):
        part = rows[some].reshape(-1) ^ np.uint8(_INT4_ZERO)
        numbers = np.empty(2 * part.size, np.uint8)
        np.bitwise_and(part, 15, out=numbers[::2])
        np.right_shift(part, 4, out=numbers[1::2])
        pairs = numbers.reshape(-1, WEBGPU_BLOCK // 2, 2, outputs)
        matrix[:, some] = (pairs[:, :, 0] | pairs[:, :, 1] << 4).transpose(2, 0, 1)


def reorder_int8(integers: Int8, matrix: Bytes) -> None:
    """Write `integers` [inputs, outputs] plus 128 to `matrix`, uint8 [outputs, blocks, 32]."""
    outputs, blocks, _ = matrix.shape
    rows = integers.view(np.uint8).reshape(blocks, WEBGPU_BLOCK, outputs)
    for some in _chunks(blocks, WEBGPU_BLOCK * outputs):
        matrix[:, some] = (rows[some] ^ np.uint8(_INT8_ZERO)).transpose(2, 0, 1)


def _chunks(blocks: int, block_size: int) -> Iterator[slice]:
    """Yield slices of blocks whose numbers are about `_CHUNK_BYTES`."""
    count = max(1, _CHUNK_BYTES // block_size)
    for first in range(0, blocks, count):
        yield slice(first, first + count)


_ALIGNMENT = 64
"""Alignment of a matrix, in bytes: one cache line."""


def aligned_size(size: int) -> int:
    """Return `size`, in bytes, rounded up so that the next matrix is aligned."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def temporary_memory(size: int, content: str, remedy: str) -> mmap.mmap:
    """Return zeroed memory of `size` bytes, in a file that is deleted with the last reference.

    Raises BadInputError with `content` and `remedy` if the temporary folder is full or cannot be written.
    """
    try:
        with tempfile.TemporaryFile(prefix="lopa-matrices-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)  # fails here if the disk is full
            else:
                file.truncate(size)
            return mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise_if_from_handler(error)
        raise BadInputError(
            f"cannot make a temporary file of {size / 1e9:.2f} GB for {content}: {error}",
            expected="a temporary folder with that much space while the bundle is open",
            remedy=remedy,
        ) from error
