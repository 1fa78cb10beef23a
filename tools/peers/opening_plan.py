"""Choice between sides that are open together and sides that are opened one by one, with the defaults of each."""

import math
from dataclasses import dataclass

from lopa.runtime.bundle.manifest import ModelDimensions
from lopa.runtime.bundle.network import network_from_dimensions

OPENINGS = ("together", "one-by-one")
_WEIGHT_BYTES = 2
"""Bytes per weight of a side: int8 numbers and the copy that an engine makes of them."""


@dataclass(frozen=True)
class OpeningPlan:
    """Way of opening the sides, and the defaults of options."""

    together: bool
    """True if all sides of one precision are open at once."""
    threads: tuple[int, ...]
    sizes: tuple[str, ...]
    prefix: int
    rounds: int


TOGETHER = OpeningPlan(True, threads=(1, 2), sizes=("1x64", "4x64", "8x64"), prefix=256, rounds=5)
ONE_BY_ONE = OpeningPlan(False, threads=(2,), sizes=("1x32", "1x64", "4x32"), prefix=128, rounds=2)


def plan_of_openings(opening: str | None, sizes: ModelDimensions, free: int | None) -> OpeningPlan:
    """Return the plan called `opening`, or the one that suits a model's sizes and `free` bytes of memory.

    The sides are opened one by one if two of them would not fit. Unknown memory counts as enough.
    """
    if opening is not None:
        return TOGETHER if opening == OPENINGS[0] else ONE_BY_ONE
    weights = sum(math.prod(each.shape) for each in network_from_dimensions(sizes).tensors.values())
    return TOGETHER if free is None or 2 * _WEIGHT_BYTES * weights <= free else ONE_BY_ONE
