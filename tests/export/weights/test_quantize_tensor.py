"""Integers and scales against plain float64 arithmetic, for ordinary, zero, tiny and huge values."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.export.weights.plan import BLOCK, Dtype
from lopa.export.weights.quantize_tensor import (
    bytes_from_int4,
    int4_from_values,
    int8_from_values,
    integers_from_values,
)
from lopa.runtime.bundle.weights import int4_from_bytes, values_from_integers

HALF_A_STEP = 0.5 + 1e-6


def _matrix(blocks: int, outputs: int, magnitude: float, *, zeros: bool, seed: int) -> np.ndarray:
    """Return float32 [blocks * BLOCK, outputs]; columns differ in size, and `zeros` adds a zero column and block."""
    rng = np.random.default_rng(seed)
    values = rng.standard_t(3, (blocks * BLOCK, outputs)) * magnitude * np.exp(rng.standard_normal(outputs))
    if zeros:
        values[:, rng.integers(outputs)] = 0
        values[:BLOCK] = 0
    return values.astype(np.float32)


matrices = st.builds(
    _matrix,
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from([1e-30, 1e-5, 0.02, 1.0, 300.0, 1e30]),
    zeros=st.booleans(),
    seed=st.integers(0, 1 << 30),
)


@settings(max_examples=60, deadline=None)
@given(matrices)
def test_int8_errs_by_at_most_half_a_step(values: np.ndarray) -> None:
    integers, scales = (found.numpy() for found in int8_from_values(torch.from_numpy(values)))
    assert (integers.dtype, scales.dtype, scales.shape) == (np.int8, np.float32, (values.shape[1],))
    steps = scales.astype(np.float64)
    assert (np.abs(integers * steps - values) <= HALF_A_STEP * steps).all()
    expected = np.maximum(np.abs(values.astype(np.float64)).max(axis=0) / 127, 2.0**-126)
    np.testing.assert_allclose(steps, expected, rtol=1e-6)
    # No step is larger than necessary: the largest magnitude of a column maps to the last integer.
    assert (np.abs(integers).max(axis=0)[np.abs(values).max(axis=0) > 2.0**-119] == 127).all()
    np.testing.assert_array_equal(integers, np.clip(np.rint(values / scales), -127, 127))


@settings(max_examples=60, deadline=None)
@given(matrices, st.sampled_from(["float32", "bfloat16"]))
def test_int4_errs_by_at_most_half_a_step(values: np.ndarray, dtype: Dtype) -> None:
    _check_int4(values, dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        _matrix,
        st.integers(1, 3),
        st.integers(1, 9),
        st.sampled_from([1e-9, 1e-7, 1e-4, 0.02, 30.0]),
        zeros=st.booleans(),
        seed=st.integers(0, 1 << 30),
    )
)
def test_int4_with_float16_scales(values: np.ndarray) -> None:
    """Include scales that are subnormal in float16."""
    _check_int4(np.clip(values, -60000, 60000), "float16")


def _check_int4(values: np.ndarray, dtype: Dtype) -> None:
    found, found_scales = int4_from_values(torch.from_numpy(values), dtype)
    integers, scales = found.numpy(), found_scales.double().numpy()
    assert str(found_scales.dtype) == f"torch.{dtype}"
    assert scales.shape == (len(values) // BLOCK, values.shape[1])
    assert integers.min() >= -8
    assert integers.max() <= 7
    steps = scales.repeat(BLOCK, axis=0)
    assert (np.abs(integers * steps - values.astype(np.float64)) <= HALF_A_STEP * steps).all()
    # Within the type's rounding, each step is the smallest that satisfies this.
    blocks = values.astype(np.float64).reshape(-1, BLOCK, values.shape[1])
    needed = np.maximum(blocks.max(axis=1) / 7.5, blocks.min(axis=1) / -8.5)
    rounding = {"float32": 1e-6, "bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    lower = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-24}[dtype]
    assert (scales >= needed * (1 - 1e-6)).all()
    assert (scales <= needed * (1 + rounding) + lower).all()


@given(st.lists(st.integers(-8, 7), min_size=2, max_size=40).filter(lambda numbers: len(numbers) % 2 == 0))
def test_two_int4_share_a_byte(numbers: list[int]) -> None:
    packed = bytes_from_int4(torch.tensor(numbers, dtype=torch.int8)).numpy()
    assert packed.tolist() == [
        low % 16 + 16 * (high % 16) for low, high in zip(numbers[::2], numbers[1::2], strict=True)
    ]
    assert int4_from_bytes(packed, (len(numbers) // 2, 2)).flatten().tolist() == numbers


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_the_runtime_reads_the_written_weights(kind: str) -> None:
    values = _matrix(3, 6, 0.05, zeros=True, seed=5)
    integers, scales = integers_from_values("int8" if kind == "int8" else "int4", torch.from_numpy(values), "float32")
    found = values_from_integers(integers.numpy(), scales.numpy())
    step = np.broadcast_to(scales.numpy() if kind == "int8" else scales.numpy().repeat(BLOCK, axis=0), values.shape)
    assert found.dtype == np.float32
    assert (np.abs(found - values) <= HALF_A_STEP * step).all()
    assert np.abs(found - values).max() > 0.1 * step.max()
