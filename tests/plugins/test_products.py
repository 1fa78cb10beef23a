"""Products with quantized matrices: the kernels against float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, UNITS, Array, normal
from tests.plugins.rounding_reference import E4M3

CASES = (
    *(st.integers(1, 70), st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 2, 5])),
    *(st.sampled_from(["int4", "int8", "e4m3"]), st.sampled_from(list(TYPES)), st.integers(0, 1 << 30)),
)
FACTOR = 2.0**-9


def packed(numbers: Array) -> Array:
    """Return int4 numbers [inputs, outputs] as the bundle stores them: two in a byte, the first in its low half."""
    low, high = numbers.astype(np.uint8).reshape(len(numbers), -1, 2).transpose(2, 0, 1) & 15
    return low | high << 4


def dequantized(numbers: Array, scales: Array) -> Array:
    """Return int4 numbers times the scales of their blocks of 32, in the type of the scales."""
    return numbers.astype(scales.dtype) * scales.repeat(32, 0)[: len(numbers)]


def _check(
    kernels: Kernels, rows: int, inputs: int, outputs: int, parts: int, kind: str, floats: str, seed: int
) -> None:
    """Compare a product with inputs in `parts` parts, in tiles that nothing fills."""
    rng, dtype = np.random.default_rng(seed), TYPES[floats]
    tile = {"ROWS": 32, "COLUMNS": 64, "DEPTH": 64}
    if kind == "int4":
        x, integers = normal(rng, (rows, inputs), floats), rng.integers(-8, 8, (inputs, outputs))
        scales = np.exp(rng.standard_normal((inputs // 32, outputs))).astype(dtype)
        wide, weight = x.astype(np.float64), dequantized(integers, scales).astype(np.float64)
        given = [x, packed(integers).view(np.int32), scales]
    else:
        x, matrix = (rng.integers(-127, 128, shape).astype(np.int8) for shape in ((rows, inputs), (inputs, outputs)))
        if kind == "e4m3":
            x, matrix = x & ~np.int8(8), matrix & ~np.int8(8)  # no NaN
            wide, weight = (each.view(E4M3).astype(np.float64) for each in (x, matrix))
        else:
            wide, weight = x.astype(np.float64), matrix.astype(np.float64)
        given = [x, np.ascontiguousarray(matrix.T) if kind == "e4m3" else matrix]
        wide, tile = wide * FACTOR, {"E4M3": kind == "e4m3", **tile}
    each = -(-inputs // (64 * parts)) * 64
    parts = -(-inputs // each)
    output, scratch = np.full((rows, outputs), np.nan, dtype), np.full((parts, rows, outputs), np.nan, np.float32)
    numbers = [rows, inputs, outputs, each, *([] if kind == "int4" else [FACTOR])]
    name, grid = ("int4" if kind == "int4" else "rounded") + "_product", (-(-outputs // 64), -(-rows // 32), parts)
    found = kernels(kernel_calls.run, name, grid, [*given, output, scratch, *numbers], tile)[-2:]
    if parts > 1:
        assert np.isnan(found[0].astype(np.float32)).all()
        merge = [found[1], output, parts, rows * outputs]
        found = kernels(kernel_calls.run, "product_merge", (-(-rows * outputs // 64),), merge, {"BLOCK": 64})[::-1]
    exact = wide @ weight
    sums = np.abs(wide) @ np.abs(weight)
    # Roundings of float32 in sums, and one of the result.
    bound = sums * 2.0**-20 + np.abs(exact) * UNITS[floats] / 2
    assert (np.abs(found[0].astype(np.float64) - exact) <= bound).all()
    if kind == "int8":
        np.testing.assert_array_equal(found[0].astype(np.float32), exact.astype(np.float32).astype(dtype))


@FEW
@given(*CASES)
def test_any_sizes(
    kernels: Kernels, rows: int, depth: int, width: int, parts: int, kind: str, floats: str, seed: int
) -> None:
    _check(kernels, rows, 32 * depth, 16 * width, parts, kind, floats, seed)


@pytest.mark.slow
@MANY
@given(*CASES)
def test_many_sizes(
    kernels: Kernels, rows: int, depth: int, width: int, parts: int, kind: str, floats: str, seed: int
) -> None:
    _check(kernels, rows, 32 * depth, 16 * width, parts, kind, floats, seed)


@pytest.mark.parametrize("kind", ["int4", "int8", "e4m3"])
@pytest.mark.parametrize("floats", TYPES)
@pytest.mark.parametrize(("rows", "inputs", "outputs", "parts"), [(1, 32, 16, 1), (33, 224, 144, 3)])
def test_one_row_and_ragged_tiles(
    kernels: Kernels, rows: int, inputs: int, outputs: int, parts: int, kind: str, floats: str
) -> None:
    _check(kernels, rows, inputs, outputs, parts, kind, floats, 8)


def test_a_row_depends_on_itself_alone(kernels: Kernels) -> None:
    """Rows with NaN do not change other rows."""
    x = normal(np.random.default_rng(2), (2, 64), "fp32")
    weight, scales = np.full((64, 2), 0x76543210, np.int32), np.ones((2, 16), np.float32)
    alone, both = (np.full((count, 16), np.nan, np.float32) for count in (1, 2))
    tile = {"ROWS": 16, "COLUMNS": 64, "DEPTH": 64}
    wide = np.stack([x[0], np.full(64, np.nan, np.float32)])
    for rows, output in ((x[:1], alone), (wide, both)):
        given = [rows, weight, scales, output, np.zeros(1, np.float32), len(rows), 64, 16, 64]
        output[:] = kernels(kernel_calls.run, "int4_product", (1, 1, 1), given, tile)[3]
    np.testing.assert_array_equal(both[0], alone[0])
    assert np.isnan(both[1]).all()
    np.testing.assert_allclose(alone[0], x[0].sum() * np.tile([0, 1, 2, 3, 4, 5, 6, 7], 2), rtol=1e-4, atol=1e-4)
