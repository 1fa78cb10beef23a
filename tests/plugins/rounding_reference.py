"""Rounding of rows to 8 bits and scales of products in numpy, the references of rounding_kernel."""

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
GREATEST = {"e4m3": 448.0, "int8": 127.0}


def rounded_rows(x: Array, kind: str) -> tuple[Array, Array]:
    """Return rows divided by their scales and rounded, [rows, size] in e4m3 or int8, and the scales, float32 [rows]."""
    wide = x.astype(np.float32)
    largest = np.abs(wide).max(-1, keepdims=True)  # NaN if there is one
    scales = np.maximum(largest, np.float32(1e-30)) * np.float32(1 / GREATEST[kind])
    with np.errstate(invalid="ignore"):
        ratio = (wide / scales).clip(-GREATEST[kind] - 0.5, GREATEST[kind] + 0.5)
    if kind == "e4m3":
        return ratio.clip(-448, 448).astype(E4M3), scales[..., 0]
    return np.rint(np.nan_to_num(ratio)).clip(-127, 127).astype(np.int8), scales[..., 0]


def scaled_product(product: Array, row_scales: Array, column_scales: Array) -> Array:
    """Return a product times its scales, rounded to its type."""
    return (product.astype(np.float64) * column_scales * row_scales[..., None]).astype(product.dtype)
