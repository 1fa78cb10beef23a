"""Gated products in numpy with float64, the reference of swiglu_kernel."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def swiglu_reference(gate: Array, up: Array, *, gelu: bool = False) -> Array:
    """Return silu(gate) * up, or gelu(gate) * up, for arrays of one shape. The first factor is rounded."""
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        active = wide / (1.0 + np.exp(-wide))
    if gelu:
        active = wide / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))
    return (active.astype(gate.dtype).astype(np.float64) * up.astype(np.float64)).astype(gate.dtype)
