"""Rounding of rows and scales of products: the kernels against numpy, bit for bit, and the references against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, TYPES, Array, assert_rounded, normal
from tests.plugins.rounding_reference import E4M3, GREATEST, rounded_rows, scaled_product

KINDS = list(GREATEST)


def _rounded(kernels: Kernels, x: Array, kind: str, block: int = 64, factor: float = 1.0) -> tuple[Array, Array]:
    output, scales = np.full(x.shape, 99, np.int8), np.full(len(x), np.nan, np.float32)
    numbers = [x.shape[1], 1 / GREATEST[kind], factor, int(kind == "e4m3")]
    found = kernels(kernel_calls.run, "round_rows", (len(x),), [x, output, scales, *numbers], {"BLOCK": block})
    return found[1].view(E4M3 if kind == "e4m3" else np.int8), found[2]


def _assert_equal(found: tuple[Array, Array], wanted: tuple[Array, Array]) -> None:
    np.testing.assert_array_equal(found[0].astype(np.float32), wanted[0].astype(np.float32))
    np.testing.assert_array_equal(np.signbit(found[0]), np.signbit(wanted[0]))
    np.testing.assert_array_equal(found[1], wanted[1])


@FEW
@given(
    *(st.integers(1, 4), st.integers(1, 12), st.sampled_from([16, 64, 256])),
    *(st.sampled_from(list(TYPES)), st.sampled_from(KINDS), st.integers(0, 1 << 30)),
)
def test_any_sizes(kernels: Kernels, rows: int, sixteens: int, block: int, floats: str, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = normal(rng, (rows, 16 * sixteens), floats) * rng.choice([1e-3, 1, 300], (rows, 1)).astype(TYPES[floats])
    _assert_equal(_rounded(kernels, x, kind, block), rounded_rows(x, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_every_number_of_float16(kernels: Kernels, kind: str) -> None:
    """Each number up to the largest, so that the scale is 1: halfway cases, subnormal numbers and signed zeros."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.abs(every) <= GREATEST[kind]]
    rows = np.append(every, np.zeros(-len(every) % 64, np.float16)).reshape(1, -1)
    found = _rounded(kernels, rows, kind, 1 << 16)
    _assert_equal(found, rounded_rows(rows, kind))
    assert found[1] == 1
    theirs = torch.from_numpy(rows).float()
    theirs = theirs.to(torch.float8_e4m3fn).float() if kind == "e4m3" else theirs.round()
    np.testing.assert_array_equal(found[0].astype(np.float32), theirs.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_not_finite_and_zeros(kernels: Kernels, kind: str) -> None:
    """NaN and infinity make the whole row of a product NaN: by the scale, or by 0 times the scale."""
    x = np.ones((4, 48), np.float32)
    x[0, 40], x[1, 3], x[2] = np.nan, -np.inf, 0
    x[3, :3] = 1e-38, 3e38, -3e38
    found = _rounded(kernels, x, kind, 16, factor=4.0)
    wanted = rounded_rows(x, kind)
    _assert_equal((found[0], found[1] / 4), wanted)
    assert np.isnan(found[1][0])
    assert np.isinf(found[1][1])
    assert (found[0][2].astype(np.float32) == 0).all()
    assert found[1][2] > 0


@pytest.mark.parametrize("floats", TYPES)
def test_scales_of_products(kernels: Kernels, floats: str) -> None:
    rng = np.random.default_rng(3)
    x = normal(rng, (3, 80), floats)
    rows, columns = np.exp(rng.standard_normal(3)).astype(np.float32), rng.standard_normal(80).astype(np.float32)
    arguments = [x, rows, columns, np.full_like(x, np.nan), 80]
    found = kernels(kernel_calls.run, "scale_rows", (3, 2), arguments, {"BLOCK": 64})[-1]
    assert_rounded(found, scaled_product(x, rows, columns), floats)
