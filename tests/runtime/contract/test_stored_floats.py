import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lopa.runtime.contract import float32_from_stored, stored_dtype, stored_from_float32

BFLOAT16 = stored_dtype("bfloat16")
EVERY_WORD = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def test_every_bfloat16_round_trips() -> None:
    values = float32_from_stored(EVERY_WORD)
    assert values.dtype == np.float32
    number = ~np.isnan(values)
    again = stored_from_float32(values, BFLOAT16)
    assert again.dtype == np.uint16
    np.testing.assert_array_equal(again[number], EVERY_WORD[number])
    assert np.isnan(float32_from_stored(again[~number])).all()
    assert number.sum() == (1 << 16) - 2 * 127
    # A few readable values, built from sign, 8 exponent bits and 7 fraction bits.
    np.testing.assert_array_equal(
        float32_from_stored(np.array([0x3F80, 0xBF80, 0x4049, 0x7F80, 0x0001], np.uint16)),
        np.array([1, -1, 3.140625, np.inf, 2.0**-133], np.float32),
    )


@given(st.floats(width=32, allow_nan=False))
def test_values_are_rounded_to_the_nearest(value: float) -> None:
    """Ties go to the even last bit. Values at least half a step beyond the maximum become infinity."""
    word = int(stored_from_float32(np.array([value], np.float32), BFLOAT16)[0])
    below = int(np.array([value], np.float32).view(np.uint32)[0]) >> 16  # the neighbor closer to zero
    distances = [
        abs(_value(candidate) - value) if candidate & 0x7FFF < 0x7F80 else None for candidate in (below, below + 1)
    ]
    if distances[0] is None:  # infinite
        assert word == below
    elif distances[1] is None:
        assert word == (below if distances[0] < 2.0**119 else below + 1)
    elif distances[0] == distances[1]:
        assert word == below + below % 2
    else:
        assert word == (below if distances[0] < distances[1] else below + 1)


def _value(word: int) -> float:
    """Return the value of a bfloat16 word by the definition of the format."""
    exponent, fraction = word >> 7 & 0xFF, word & 0x7F
    size = fraction * 2.0**-133 if exponent == 0 else (128 + fraction) * 2.0 ** (exponent - 134)
    return -size if word >> 15 else size


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_numpy_float_types_round_trip(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    stored = stored_from_float32(values, stored_dtype(name))
    assert stored.dtype == np.dtype(name)
    np.testing.assert_array_equal(float32_from_stored(stored), values.astype(name).astype(np.float32))
