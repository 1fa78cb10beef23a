"""Matrices in WebGPU's order, compared with what a definition of MatMulNBits reads from them."""

import numpy as np
import numpy.typing as npt
import pytest

from lopa.runtime.bundle import webgpu_twin
from lopa.runtime.bundle.webgpu_twin import WEBGPU_BLOCK, reorder_int4, reorder_int8
from lopa.runtime.bundle.weights import int4_from_bytes


def numbers_of(matrix: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.int64]:
    """Return the integers [inputs, outputs] that MatMulNBits reads, one number after another."""
    outputs, blocks, _ = matrix.shape
    numbers = np.empty((blocks * WEBGPU_BLOCK, outputs), np.int64)
    for i, o in np.ndindex(numbers.shape):
        block, place = divmod(i, WEBGPU_BLOCK)
        byte = int(matrix[o, block, place * bits // 8])
        numbers[i, o] = byte - 128 if bits == 8 else (byte >> 4 * (place % 2) & 15) - 8
    return numbers


@pytest.mark.parametrize(("inputs", "outputs"), [(32, 1), (64, 7), (96, 8), (256, 5)])
@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_every_number_is_found(inputs: int, outputs: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webgpu_twin, "_CHUNK_BYTES", chunk)
    rng = np.random.default_rng(inputs + outputs)
    blocks = inputs // WEBGPU_BLOCK
    packed = rng.integers(0, 256, inputs * outputs // 2, dtype=np.uint8)
    matrix = np.empty((outputs, blocks, WEBGPU_BLOCK // 2), np.uint8)
    reorder_int4(packed, matrix)
    assert (numbers_of(matrix, 4) == int4_from_bytes(packed, (inputs, outputs))).all()
    integers = rng.integers(-127, 128, (inputs, outputs), dtype=np.int8)
    matrix = np.empty((outputs, blocks, WEBGPU_BLOCK), np.uint8)
    reorder_int8(integers, matrix)
    assert (numbers_of(matrix, 8) == integers).all()
