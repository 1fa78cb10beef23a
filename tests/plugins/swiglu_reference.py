"""SwiGLU in numpy with float64, the reference of swiglu_kernel."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def swiglu_reference(gate: Array, up: Array) -> Array:
    """Return silu(gate) * up for arrays of one shape. silu is rounded to their type first."""
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        silu = (wide / (1.0 + np.exp(-wide))).astype(gate.dtype)
    return (silu.astype(np.float64) * up.astype(np.float64)).astype(gate.dtype)
