"""RMS norm: the kernel against float64, and the reference against torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, assert_rounded, normal, poison
from tests.plugins.rms_norm_reference import rms_norm_reference
from tests.plugins.rounding_reference import GREATEST, rounded_rows, scaled_product

CASES = (
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from([16, 128, 512]),
    st.booleans(),
    st.sampled_from(list(TYPES)),
    st.integers(0, 1 << 30),
)


def _check(
    kernels: Kernels, rows: int, size: int, block: int, skip: bool, floats: str, seed: int, kind: str = ""
) -> None:
    """Normalize. With a `kind`, delta has scales, and rows are rounded to this kind."""
    rng = np.random.default_rng(seed)
    x, delta = normal(rng, (rows, size), floats), normal(rng, (rows, size), floats)
    weight, epsilon = normal(rng, (size,), floats), float(rng.choice([1e-6, 0.5]))
    scales = [np.exp(rng.standard_normal(count)).astype(np.float32) for count in (rows, size)]
    absent, unread = poison(floats), poison("fp32")
    normed, total = np.full_like(x, np.nan), np.full_like(x, np.nan)
    codes, of_rows = np.full(x.shape, 99, np.int8), np.full(rows, np.nan, np.float32)
    given: list[Any] = [x, delta if skip else absent, weight, *(scales if kind else (unread, unread)), int(bool(kind))]
    given += [normed, total if skip else absent, codes, of_rows, size, epsilon]
    given += [1 / GREATEST[kind or "int8"], 0.25, int(kind == "e4m3")]
    constants = {"SKIP": skip, "ROUND": False, "BLOCK": block}
    found = kernels(kernel_calls.run, "rms_norm", (rows,), given, constants)[-4:]
    added = scaled_product(delta, *scales) if kind else delta
    wanted, summed = rms_norm_reference(x, added if skip else None, weight, epsilon)
    assert_rounded(found[0], wanted, floats, units=2 if kind else 1)
    if skip:
        assert_rounded(found[1], summed, floats)
    assert np.isnan(found[1].astype(np.float32)).all() == (not skip)
    assert np.isnan(found[3]).all()
    if kind:
        again = kernels(kernel_calls.run, "rms_norm", (rows,), given, {**constants, "ROUND": True})[-4:]
        codes, of_rows = rounded_rows(found[0], kind)
        np.testing.assert_array_equal(again[2].view(codes.dtype).astype(float), codes.astype(float))
        np.testing.assert_array_equal(again[3] * 4, of_rows)
        np.testing.assert_array_equal(again[1].astype(np.float32), found[1].astype(np.float32))
        assert np.isnan(again[0].astype(np.float32)).all()


@FEW
@given(*CASES)
def test_any_sizes(kernels: Kernels, rows: int, sixteens: int, block: int, skip: bool, floats: str, seed: int) -> None:
    _check(kernels, rows, 16 * sixteens, block, skip, floats, seed)


@pytest.mark.slow
@MANY
@given(*CASES)
def test_many_sizes(kernels: Kernels, rows: int, sixteens: int, block: int, skip: bool, floats: str, seed: int) -> None:
    _check(kernels, rows, 16 * sixteens, block, skip, floats, seed)


@pytest.mark.parametrize("floats", TYPES)
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("kind", ["", "e4m3", "int8"])
@pytest.mark.parametrize("block", [64, 256])
def test_long_and_rounded_rows(kernels: Kernels, floats: str, skip: bool, kind: str, block: int) -> None:
    _check(kernels, 3, 3 * 64 + 16, block, skip, floats, 5, kind)


def test_the_reference_is_torchs() -> None:
    rng = np.random.default_rng(1)
    x, delta, weight = rng.standard_normal((3, 2, 48))
    found, total = rms_norm_reference(x, delta, weight[0], 1e-3)
    wanted = torch.nn.functional.rms_norm(torch.from_numpy(x + delta), (48,), torch.from_numpy(weight[0]), 1e-3)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(total, x + delta)
