"""Measures several sides in turns, and compares what each took. Knows no side."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from lopa.bench.progress import Progress, silent

Side = TypeVar("Side")
Found = TypeVar("Found")


def in_turns(
    sides: Mapping[Side, Callable[[int], Found]], turns: int, progress: Progress = silent
) -> dict[Side, list[Found]]:
    """Run every side once in every turn, and return what each of its runs gave.

    A machine that slows down for a while slows all sides. A side is given the turn's number, counted from 0. `progress`
    receives the number of finished turns.
    """
    found: dict[Side, list[Found]] = {side: [] for side in sides}
    for turn in range(turns):
        for side, run in sides.items():
            found[side].append(run(turn))
        progress(turn + 1)
    return found


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median, over the turns, of a side's figure over another's of the same turn."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))
