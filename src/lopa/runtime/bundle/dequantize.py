"""Integers and scales back to values: what the numbers of a quantized matrix stand for. Knows arrays, no files."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Float32, Floats

Int8 = npt.NDArray[np.int8]


def values_from_integers(integers: Int8, scales: Floats) -> Float32:
    """float32 [inputs, outputs] from as many integers; `scales` [outputs], or [inputs / block, outputs] in blocks."""
    inputs, outputs = integers.shape
    blocks = integers.reshape(-1, inputs, outputs) if scales.ndim == 1 else integers.reshape(len(scales), -1, outputs)
    values: Float32 = blocks * scales.astype(np.float32).reshape(len(blocks), 1, outputs)
    return values.reshape(inputs, outputs)


def int4_from_bytes(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> Int8:
    """Numbers from -8 to 7 out of bytes that hold two each, the first in the low half, in the order of the rows."""
    halves = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    signed: npt.NDArray[Any] = (halves ^ 8).astype(np.int8) - np.int8(8)
    return signed[: int(np.prod(shape))].reshape(shape)
