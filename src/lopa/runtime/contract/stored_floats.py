"""Floating-point numbers as stored in arrays and files.

numpy has no bfloat16, so an array of uint16 holds bfloat16 bits. This module is the only one that defines this
encoding.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract.forward import Float32, Rows

_BFLOAT16_BITS = np.dtype(np.uint16)
_QUIET_NAN = np.uint32(0x7FC0)


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the numpy type that stores numbers of type `name` (float32, float16 or bfloat16)."""
    return _BFLOAT16_BITS if name == "bfloat16" else np.dtype(name)


def float32_from_stored(stored: npt.NDArray[Any]) -> Float32:
    """Return the exact values as float32, in the same shape. A float32 array is returned unchanged."""
    if stored.dtype != _BFLOAT16_BITS:
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def stored_from_float32(values: Float32, dtype: np.dtype[Any]) -> Rows:
    """Round `values` to `dtype`: to nearest, ties to even."""
    if dtype != _BFLOAT16_BITS:
        return values.astype(dtype, copy=False)
    bits = values.view(np.uint32)
    # Add just under half of the last kept bit, plus one if that bit is odd. The carry then rounds to nearest even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), _QUIET_NAN, rounded).astype(_BFLOAT16_BITS)
