"""Cosines and sines of rotary angles, computed on the host for graphs that take them in place of positions.

Hardware that computes in float16 rounds the product of a position and a frequency, so its angles are wrong at large
positions (docs/concepts/contract.md). This module uses arrays only, no device and no file.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.contract import POSITION_IDS, ROTARY_COS, ROTARY_SIN, Float32, Int64

ROTARY_INPUTS = (ROTARY_COS, ROTARY_SIN)
"""The inputs that replace POSITION_IDS, in order."""


@dataclass(frozen=True)
class RotaryAngles:
    """Rotary embedding of `size` channels per head with the base `theta`."""

    size: int
    theta: float

    def inverse_frequencies(self) -> Float32:
        """Return the angle per position of every pair of channels, [size / 2].

        Only the powers are float64, rounded to float32. numpy's float32 powers have larger errors than torch's, in
        which models were trained.
        """
        exponents = np.arange(0, self.size, 2, dtype=np.float32) / np.float32(self.size)
        powers = np.float64(self.theta) ** exponents.astype(np.float64)
        return np.float32(1) / powers.astype(np.float32)

    def cosines_and_sines(self, position_ids: Int64) -> tuple[Float32, Float32]:
        """Return the cosines and sines of positions [...] as C-contiguous arrays [..., size / 2].

        All steps from the frequencies on are float32, as in a float32 graph.
        """
        angles = position_ids[..., None].astype(np.float32) * self.inverse_frequencies()
        return np.cos(angles), np.sin(angles)


def full_frequencies(rotary_size: int, head_size: int, theta: float) -> Float32:
    """Return the angle per position of every pair of a full layer's channels, [head size / 2]: 0 for those that do not
    rotate.
    """
    exponents = np.arange(0, rotary_size, 2, dtype=np.float32) / np.float32(head_size)
    powers = np.float64(theta) ** exponents.astype(np.float64)
    rotating = np.float32(1) / powers.astype(np.float32)
    return np.pad(rotating, (0, head_size // 2 - len(rotating)))


def position_inputs(position_ids: Int64, rotary: RotaryAngles | None) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs that tell a graph its positions, by name.

    They are `position_ids` [...], or the cosines and sines [..., size / 2] of `rotary` if the graph takes these.
    """
    if rotary is None:
        return {POSITION_IDS: position_ids}
    return dict(zip(ROTARY_INPUTS, rotary.cosines_and_sines(position_ids), strict=True))


def with_rotary_names(names: Iterable[str]) -> list[str]:
    """Return input names with ROTARY_INPUTS at the place of POSITION_IDS."""
    return [new for name in names for new in (ROTARY_INPUTS if name == POSITION_IDS else (name,))]
