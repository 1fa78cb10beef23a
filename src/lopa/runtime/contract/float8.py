"""Numbers of 8 bits in the format E4M3 (float8e4m3fn in ONNX and torch), and rows of activations rounded to them."""

from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import Float32

MAX_E4M3 = 448.0
"""Largest number. There is no infinity."""
MIN_MAGNITUDE = 1e-30
"""Lower bound for the largest magnitude of a row, for rows of zeros."""
_MIN_EXPONENT, _MANTISSA_BITS = -6, 3


def _values() -> Float32:
    bits = np.arange(128)
    exponents, mantissas = bits >> _MANTISSA_BITS, (bits & 7) | np.where(bits > 7, 8, 0)
    values = np.ldexp(mantissas.astype(np.float32), np.maximum(exponents, 1) + _MIN_EXPONENT - _MANTISSA_BITS - 1)
    values[-1] = np.nan
    signed: Float32 = np.concatenate([values, -values])
    return signed


_VALUES = _values()
"""Values of all bytes."""


def float32_from_e4m3(stored: npt.NDArray[np.uint8]) -> Float32:
    """Return the values of bytes, in the same shape."""
    values: Float32 = _VALUES[stored]
    return values


def rounded_to_e4m3(x: Float32) -> Float32:
    """Return the nearest numbers in E4M3, ties to even and at most MAX_E4M3 in magnitude. A NaN stays NaN."""
    exponents: npt.NDArray[Any] = np.maximum(np.frexp(x)[1] - 1, _MIN_EXPONENT)
    steps = np.ldexp(np.float32(1), exponents - _MANTISSA_BITS)
    rounded: Float32 = np.clip(np.rint(x / steps) * steps, -MAX_E4M3, MAX_E4M3)
    return rounded


def rounded_rows(x: Float32) -> tuple[Float32, Float32]:
    """Return the rows [.., n] divided by their scales and rounded, and the scales [.., 1].

    The largest magnitude of a row becomes MAX_E4M3, and an infinite one NaN.
    """
    magnitudes = np.maximum(np.abs(x).max(axis=-1, keepdims=True), np.float32(MIN_MAGNITUDE))
    scales: Float32 = magnitudes * np.float32(1 / MAX_E4M3)
    with np.errstate(invalid="ignore"):
        return rounded_to_e4m3(x / scales), scales
