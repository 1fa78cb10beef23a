"""Dequantized values, compared with loops over single numbers."""

import numpy as np
import pytest

from lopa.runtime.bundle.weights import int4_from_bytes, values_from_integers

RNG = np.random.default_rng(31)


@pytest.mark.parametrize("scale_blocks", [None, 1, 3])
def test_values_are_integers_times_scales(scale_blocks: int | None) -> None:
    integers = RNG.integers(-127, 128, (12, 5)).astype(np.int8)
    scales = RNG.random(5 if scale_blocks is None else (scale_blocks, 5)).astype(np.float16)
    found = values_from_integers(integers, scales)
    assert found.dtype == np.float32
    rows = np.atleast_2d(scales)
    for i in range(12):
        for j in range(5):
            assert found[i, j] == np.float32(integers[i, j]) * np.float32(rows[i // (12 // len(rows)), j])


def test_int4_are_signed_nibbles_low_half_first() -> None:
    packed = np.array([0x10, 0xF7, 0x8A], np.uint8)
    assert int4_from_bytes(packed, (2, 3)).tolist() == [[0, 1, 7], [-1, -6, -8]]
    assert int4_from_bytes(packed, (5,)).tolist() == [0, 1, 7, -1, -6]
