"""Masks of a forward: its rows see the prefix, their own window, or everything."""

from typing import Literal

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.contract import Bool, Int64

Attention = Literal["cached", "whole", "causal"]
"""cached: the prefix sees itself; a window sees the prefix and itself, as in a decode with a cache.

whole: prefix and window see each other, as in a forward without a cache.

causal: as cached, but a row sees no later rows.
"""


def positions_of_rows(shape: ForwardShape) -> Int64:
    """Return the position of every row: the prefix, then the window of each branch."""
    return np.concatenate([np.arange(shape.prefix), *[shape.prefix + np.arange(shape.window)] * shape.branches])


def visible_rows(shape: ForwardShape, attention: Attention) -> Bool:
    """Return the mask [rows, rows] of prefix and windows: True where a row (first axis) sees another."""
    branch = np.concatenate([np.zeros(shape.prefix, np.int64), np.repeat(1 + np.arange(shape.branches), shape.window)])
    visible: Bool = (branch[None] == 0) | (branch[:, None] == branch[None])
    if attention == "whole":
        if shape.branches != 1:
            raise ValueError(f"received {shape.branches} branches, expected 1 without a cache")
        visible = np.ones_like(visible)
    if attention == "causal":
        positions = positions_of_rows(shape)
        visible &= positions[:, None] >= positions[None]
    return visible
