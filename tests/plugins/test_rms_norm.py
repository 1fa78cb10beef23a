"""RMS norm: the kernel against float64, and the reference against torch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels
from tests.plugins.kernel_inputs import FEW, MANY, TYPES, assert_rounded, normal, poison
from tests.plugins.rms_norm_reference import rms_norm_reference

CASES = (
    st.integers(1, 4),
    st.integers(1, 40),
    st.sampled_from([16, 128, 512]),
    st.booleans(),
    st.sampled_from(list(TYPES)),
    st.integers(0, 1 << 30),
)


def _check(kernels: Kernels, rows: int, size: int, block: int, skip: bool, floats: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, delta = normal(rng, (rows, size), floats), normal(rng, (rows, size), floats)
    weight, epsilon = normal(rng, (size,), floats), float(rng.choice([1e-6, 0.5]))
    absent = poison(floats)
    normed, total = np.full_like(x, np.nan), np.full_like(x, np.nan)
    arguments = [x, delta if skip else absent, weight, normed, total if skip else absent, size, epsilon]
    found = kernels(kernel_calls.run, "rms_norm", (rows,), arguments, {"SKIP": skip, "BLOCK": block})
    wanted, summed = rms_norm_reference(x, delta if skip else None, weight, epsilon)
    assert_rounded(found[3], wanted, floats)
    if skip:
        np.testing.assert_array_equal(found[4].astype(np.float32), summed.astype(np.float32))
    else:
        assert np.isnan(found[4].astype(np.float32)).all()  # not written


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
def test_rows_longer_than_blocks(kernels: Kernels, floats: str, skip: bool) -> None:
    _check(kernels, 3, 3 * 64 + 16, 64, skip, floats, 5)


def test_the_reference_is_torchs() -> None:
    rng = np.random.default_rng(1)
    x, delta, weight = rng.standard_normal((3, 2, 48))
    found, total = rms_norm_reference(x, delta, weight[0], 1e-3)
    wanted = torch.nn.functional.rms_norm(torch.from_numpy(x + delta), (48,), torch.from_numpy(weight[0]), 1e-3)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-12)
    np.testing.assert_array_equal(total, x + delta)
