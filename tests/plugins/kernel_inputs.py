"""Random arrays of the kernels' types, and comparisons with results in float64."""

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings

Array = np.ndarray[Any, np.dtype[Any]]
TYPES = {"fp32": np.dtype(np.float32), "fp16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
UNITS = {"fp32": 2.0**-23, "fp16": 2.0**-10, "bf16": 2.0**-7}
"""Distance from 1 to the next number."""
FEW = settings(
    max_examples=6, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
MANY = settings(FEW, max_examples=60)


def normal(rng: np.random.Generator, shape: tuple[int, ...], floats: str) -> Array:
    """Return normally distributed numbers."""
    return np.asarray(rng.standard_normal(shape).astype(TYPES[floats]))


def poison(floats: str) -> Array:
    """Return an array for an absent argument. A kernel that reads it gets NaN."""
    return np.full(16, np.nan, TYPES[floats])


def assert_rounded(found: Array, wanted: Array, floats: str, units: float = 1) -> None:
    """Compare numbers that were rounded in the same places. Most are equal, others differ in the last place."""
    found, wanted = found.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=units * UNITS[floats], atol=4e-6 if floats == "fp32" else 1e-6)
    if floats != "fp32":
        assert (found == wanted).mean() > 0.98 or found.size < 200
