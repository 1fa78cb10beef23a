"""Floating-point numbers as arrays and files hold them. numpy has no bfloat16: an array of uint16 holds the bits of
bfloat16 numbers, here and nowhere else said. Does not know what the numbers mean.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract.forward import Float32, Rows

_BFLOAT16_BITS = np.dtype(np.uint16)
_QUIET_NAN = np.uint32(0x7FC0)


def stored_dtype(name: str) -> np.dtype[Any]:
    """What holds numbers of the type `name` (float32, float16 or bfloat16)."""
    return _BFLOAT16_BITS if name == "bfloat16" else np.dtype(name)


def float32_from_stored(stored: npt.NDArray[Any]) -> Float32:
    """The values, of any shape; exact. A float32 array is given back as it is."""
    if stored.dtype != _BFLOAT16_BITS:
        return stored.astype(np.float32, copy=False)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)


def stored_from_float32(values: Float32, dtype: np.dtype[Any]) -> Rows:
    """`values` rounded to what an array of `dtype` holds: to the nearest, of two equally near to the even one."""
    if dtype != _BFLOAT16_BITS:
        return values.astype(dtype, copy=False)
    bits = values.view(np.uint32)
    # Adding just less than half of the last place that stays, and one more where that place is odd, rounds by carrying.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), _QUIET_NAN, rounded).astype(_BFLOAT16_BITS)
