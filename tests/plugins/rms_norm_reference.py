"""RMS norm in numpy with float64, the reference of rms_norm_kernel."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def rms_norm_reference(x: Array, delta: Array | None, weight: Array, epsilon: float) -> tuple[Array, Array]:
    """Return the norm of x, or of x + delta, and what was normalized. x and delta are [rows, H], weight [H].

    The sum is rounded to the type of x, and so is the norm.
    """
    total = x if delta is None else (x.astype(np.float64) + delta.astype(np.float64)).astype(x.dtype)
    wide = total.astype(np.float64)
    mean = np.square(wide).mean(-1, keepdims=True)
    return (wide / np.sqrt(mean + epsilon) * weight.astype(np.float64)).astype(x.dtype), total
