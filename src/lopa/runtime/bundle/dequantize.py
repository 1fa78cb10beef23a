"""Dequantization: convert integers and scales to values. This module uses arrays only."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Float32, Floats

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
