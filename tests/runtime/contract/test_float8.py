"""Numbers in E4M3 and rows rounded to them, against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

from lopa.runtime.contract.float8 import float32_from_e4m3, rounded_rows, rounded_to_e4m3

E4M3 = ml_dtypes.float8_e4m3fn
ALL = np.arange(256, dtype=np.uint8)


def test_every_byte() -> None:
    np.testing.assert_array_equal(float32_from_e4m3(ALL), ALL.view(E4M3).astype(np.float32))
    np.testing.assert_array_equal(np.signbit(float32_from_e4m3(ALL)), ALL > 127)


def test_numbers_between_and_beyond_all_others() -> None:
    """Ties go to even numbers, large numbers to the largest one, and a NaN stays one."""
    numbers = np.sort(float32_from_e4m3(ALL)[~np.isnan(float32_from_e4m3(ALL))])
    ties = (numbers[1:] + numbers[:-1]) / 2
    values = np.concatenate([numbers, *(np.nextafter(ties, ties + side) for side in (-1, 1)), ties]).astype(np.float32)
    np.testing.assert_array_equal(rounded_to_e4m3(values), values.astype(E4M3).astype(np.float32))
    assert rounded_to_e4m3(np.array([449, 1e30, np.inf, -np.inf], np.float32)).tolist() == [448, 448, 448, -448]
    assert np.isnan(rounded_to_e4m3(np.array([np.nan], np.float32))).all()


def test_infinite_rows_need_no_warning() -> None:
    rounded, scales = rounded_rows(np.array([[1, np.inf, -np.inf], [np.nan, 0, 1]], np.float32))
    np.testing.assert_array_equal(rounded, [[0, np.nan, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(scales, [[np.inf], [np.nan]])


@pytest.mark.parametrize("magnitude", [1e-38, 1e-6, 1.0, 3e38])
def test_rows(magnitude: float) -> None:
    x = (np.random.default_rng(3).standard_normal((2, 5, 64)) * magnitude / 8).astype(np.float32)
    x[1, 2], x[1, 3, :-1] = 0, 0
    rounded, scales = rounded_rows(x)
    assert scales.shape == (2, 5, 1)
    np.testing.assert_array_equal(rounded, np.clip(x / scales, -448, 448).astype(E4M3).astype(np.float32))
    assert not rounded[1, 2].any()
    if magnitude > 1e-30:  # smaller rows are rows of zeros
        assert np.abs(rounded).max(axis=-1).ravel().tolist() == [448.0] * 7 + [0.0] + [448.0] * 2
        errors = np.abs(rounded.astype(np.float64) * scales - x) / np.abs(x).max(axis=-1, keepdims=True).clip(1e-30)
        assert errors.max() <= 2**-4 * (1 + 1e-5)
