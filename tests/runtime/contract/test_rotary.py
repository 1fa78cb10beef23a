"""Cosines and sines for graphs that take them, compared with float64 and with the numpy session's."""

import numpy as np
import pytest
from tests.runtime.random_windows import random_batch

from lopa.runtime import contract
from lopa.runtime.contract.model_part import ModelPart, whole_model
from lopa.runtime.contract.portable_form import PAST, portable_input_names, portable_inputs
from lopa.runtime.contract.rotary import RotaryAngles, position_inputs, with_rotary_names
from lopa.runtime.sessions.numpy_forward import rotation

ANGLES = RotaryAngles(32, 1_000_000.0)
POSITIONS = np.array([0, 1, 15, 500, 4_000, 30_000])


def _exact(positions: np.ndarray) -> np.ndarray:
    frequencies = 1_000_000.0 ** -(np.arange(0, 32, 2) / 32)
    return positions[..., None] * frequencies


def test_the_error_is_that_of_float32() -> None:
    cosines, sines = ANGLES.cosines_and_sines(POSITIONS)
    assert cosines.dtype == sines.dtype == np.float32
    assert cosines.shape == sines.shape == (6, 16)
    allowed = 1e-6 + POSITIONS[:, None] * 2.0**-22
    assert (np.abs(cosines - np.cos(_exact(POSITIONS))) <= allowed).all()
    assert (np.abs(sines - np.sin(_exact(POSITIONS))) <= allowed).all()


def test_they_equal_the_numpy_session_s() -> None:
    positions = np.arange(24).reshape(2, 3, 4) * 100
    found = ANGLES.cosines_and_sines(positions)
    for array, expected in zip(found, rotation(positions, 32, 1_000_000.0), strict=True):
        np.testing.assert_array_equal(array, expected[:, :, 0])


def test_inputs_of_positions() -> None:
    positions = np.arange(6).reshape(1, 2, 3)
    assert position_inputs(positions, None) == {contract.POSITION_IDS: positions}
    found = position_inputs(positions, ANGLES)
    assert list(found) == ["rotary_cos", "rotary_sin"]
    np.testing.assert_array_equal(found["rotary_cos"][0, 0, 0], np.ones(16))
    np.testing.assert_array_equal(found["rotary_sin"][0, 0, 0], np.zeros(16))
    assert all(array.flags.c_contiguous and array.shape == (1, 2, 3, 16) for array in found.values())


def test_portable_inputs_are_the_reshaped_ones() -> None:
    batch = random_batch(np.random.default_rng(3), (0, 1), 3, 5, 2, starts=(7, 9000))
    found = portable_inputs(batch, np.ones((2, 64), np.bool_), ANGLES)
    assert [*found, PAST] == portable_input_names(with_rotary=True)
    for name, expected in position_inputs(batch.position_ids, ANGLES).items():
        np.testing.assert_array_equal(found[name], expected.reshape(2, 15, 16))
        assert found[name].flags.c_contiguous


@pytest.mark.parametrize("part", [whole_model(4), ModelPart(0, 2, 4), ModelPart(2, 4, 4)], ids=str)
def test_names_stand_at_the_place_of_positions(part: ModelPart) -> None:
    names = part.input_names()
    assert names[1] == "position_ids"
    assert part.input_names(with_rotary=True) == [names[0], "rotary_cos", "rotary_sin", *names[2:]]
    assert with_rotary_names(part.input_names(with_rotary=True)) == part.input_names(with_rotary=True)
