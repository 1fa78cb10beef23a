"""Experts of a sparse layer in numpy, row by row in float64: the reference of the kernels of experts_kernel.py."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tests.plugins.kernel_inputs import TYPES, normal, poison
from tests.plugins.swiglu_reference import swiglu_reference

Array = np.ndarray[Any, np.dtype[Any]]
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
LARGEST = {"int8": 127.0, "fp8": 448.0}
"""Largest magnitude of a rounded row."""


@dataclass(frozen=True)
class StackedMatrix:
    """A matrix of each expert as in a bundle."""

    kind: str
    stored: Array
    """Floats, int8, int4 as int8 with two numbers a byte, or e4m3 as int8 [experts, outputs, inputs]."""
    scales: Array
    """Scales: [experts, inputs / 32, outputs] for int4, [experts, outputs] for int8 and fp8, unused for floats."""

    def of_expert(self, expert: int) -> Array:
        """Return an expert's matrix [inputs, outputs], in float64. int4 is rounded to the type of its scales."""
        stored, scales = self.stored[expert], self.scales[expert] if self.kind != "float" else None
        if scales is None:
            return stored.astype(np.float64)
        if self.kind == "int4":
            numbers = unpacked(stored) * scales.astype(np.float64).repeat(32, 0)
            return numbers.astype(scales.dtype).astype(np.float64)
        numbers = stored.view(FP8).T if self.kind == "fp8" else stored
        return numbers.astype(np.float64) * scales


def unpacked(stored: Array) -> Array:
    """Return int4 numbers, of which the first of a byte is in the low half."""
    halves = np.stack([(stored << 4).view(np.int8) >> 4, stored >> 4], -1)
    return halves.reshape(*stored.shape[:-1], -1).astype(np.float64)


def rounded_rows(rows: Array, kind: str) -> tuple[Array, Array]:
    """Return rows divided by their scales and rounded, and the scales, as lopa.export.graph.quantize_pass does it."""
    wide = rows.astype(np.float32)
    magnitude = np.maximum(np.abs(wide).max(-1, keepdims=True), np.float32(1e-30))
    scales = magnitude * np.float32(1 / LARGEST[kind])
    divided = wide / scales
    return (np.rint(divided) if kind == "int8" else divided.astype(FP8)).astype(np.float32), scales


def experts_reference(
    rows: Array,
    ids: Array,
    weights: Array,
    gate: StackedMatrix,
    up: StackedMatrix,
    down: StackedMatrix,
    *,
    gelu: bool = False,
) -> Array:
    """Return the weighted sum of the outputs of the chosen experts, rounded in the places of the standard graph."""
    is_rounded = gate.kind in LARGEST
    narrow = np.dtype(np.float32) if is_rounded else rows.dtype
    total = np.zeros(rows.shape, np.float32)

    def product(x: Array, matrix: Array) -> Array:
        if is_rounded:
            integers, scales = rounded_rows(x[None], gate.kind)
            return ((integers.astype(np.float64) @ matrix)[0] * scales[0]).astype(narrow)
        return (x.astype(np.float64) @ matrix).astype(narrow)

    for row, place in np.ndindex(*ids.shape):
        expert = int(ids[row, place])
        g, u = (product(rows[row], each.of_expert(expert)) for each in (gate, up))
        inner = swiglu_reference(g, u, gelu=gelu)
        total[row] += weights[row, place] * product(inner, down.of_expert(expert)).astype(np.float32)
    return total.astype(rows.dtype)


def random_matrix(
    rng: np.random.Generator, kind: str, floats: str, experts: int, inputs: int, outputs: int
) -> StackedMatrix:
    """Return random matrices whose products have about the size of their rows."""
    size = inputs**-0.5
    if kind == "float":
        return StackedMatrix(
            kind, (size * normal(rng, (experts, inputs, outputs), "fp32")).astype(TYPES[floats]), poison(floats)
        )
    if kind == "int4":
        stored = rng.integers(-128, 128, (experts, inputs, outputs // 2), dtype=np.int8)
        scales = rng.uniform(0.05, 0.4, (experts, inputs // 32, outputs)) * size
        return StackedMatrix(kind, stored, scales.astype(TYPES[floats]))
    if kind == "int8":
        stored = rng.integers(-127, 128, (experts, inputs, outputs), dtype=np.int8)
    else:
        numbers = 100 * normal(rng, (experts, outputs, inputs), "fp32")
        stored = np.clip(numbers, -448, 448).astype(FP8).view(np.int8)
    return StackedMatrix(kind, stored, (rng.uniform(0.005, 0.02, (experts, outputs)) * size).astype(np.float32))
