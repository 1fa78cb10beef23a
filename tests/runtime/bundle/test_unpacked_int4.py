"""int4 matrices unpacked to int8, compared with their values in float64."""

import numpy as np
import numpy.typing as npt
import pytest

from lopa.runtime.bundle.dequantize import int4_from_bytes
from lopa.runtime.bundle.unpacked_int4 import unpack_int4


def random_int4(
    rng: np.random.Generator, inputs: int, outputs: int, block: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Return bytes, blockwise scales and the dequantized values."""
    packed = rng.integers(0, 256, inputs * outputs // 2, dtype=np.uint8)
    scales = np.exp(rng.normal(size=(inputs // block, outputs))).astype(np.float32)
    values = int4_from_bytes(packed, (inputs, outputs)) * np.repeat(scales.astype(np.float64), block, axis=0)
    return packed, scales, values


@pytest.mark.parametrize(("inputs", "outputs", "block"), [(64, 6, 32), (96, 7, 32), (32, 1, 32), (64, 5000, 16)])
def test_every_value_is_rounded_to_the_nearest_step(inputs: int, outputs: int, block: int) -> None:
    packed, scales, values = random_int4(np.random.default_rng(0), inputs, outputs, block)
    integers = np.empty((inputs, outputs), np.int8)
    found = unpack_int4(packed, scales, integers)
    assert found.dtype == np.float32
    assert found == pytest.approx(np.abs(values).max(axis=0) / 127, rel=1e-6)
    assert (np.abs(integers.astype(int)).max(axis=0) == 127).all()
    assert (np.abs(integers * found.astype(np.float64) - values) <= 0.50001 * found).all()


def test_float16_scales_match_float32_scales() -> None:
    packed, scales, _ = random_int4(np.random.default_rng(1), 64, 8, 32)
    halves = scales.astype(np.float16)
    first, second = np.empty((64, 8), np.int8), np.empty((64, 8), np.int8)
    assert (unpack_int4(packed, halves, first) == unpack_int4(packed, halves.astype(np.float32), second)).all()
    assert (first == second).all()


def test_zero_output_stays_zero() -> None:
    packed, scales, _ = random_int4(np.random.default_rng(2), 32, 2, 32)
    packed &= 0xF0  # the first output of each row
    integers = np.empty((32, 2), np.int8)
    found = unpack_int4(packed, scales, integers)
    assert not integers[:, 0].any()
    assert integers[:, 1].any()
    assert (found > 0).all()
