"""Random numbers that depend only on seed, stream, step and position, and therefore not on the batch."""

import numpy as np

from lopa.runtime.contract import Floats, Int64

CANVAS_STREAM, TOKEN_STREAM = 8, 9
"""Streams of a canvas: its random ids, and the draws of its tokens."""
_NUMBERS = 4
"""Numbers that Philox makes per counter."""


def uniform_at(positions: Int64, width: int, *, seed: int, step: int, stream: int) -> Floats:
    """Return `width` uniform numbers for each of `positions` [...], [..., width].

    They are rows of one table for all positions, of which only the rows from the first to the last position are made.
    """
    last = int(positions.max(initial=0))
    first = int(positions.min(initial=last)) // _NUMBERS * _NUMBERS
    counter = [first * width // _NUMBERS, 0, step, stream]
    table: Floats = np.random.Generator(np.random.Philox(key=seed, counter=counter)).random((last + 1 - first, width))
    return table[positions - first]
