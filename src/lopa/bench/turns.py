"""Alternating measurement of several sides."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from lopa.bench.progress import BenchProgress, silent

Side = TypeVar("Side")
Result = TypeVar("Result")


def run_in_turns(
    sides: Mapping[Side, Callable[[int], Result]], turns: int, progress: BenchProgress = silent
) -> dict[Side, list[Result]]:
    """Run every side once per turn and return the results of each side.

    Alternation distributes slow phases of the machine over all sides. A side receives the turn's index, from 0.
    `progress` receives the number of finished turns.
    """
    found: dict[Side, list[Result]] = {side: [] for side in sides}
    for turn in range(turns):
        for side, run in sides.items():
            found[side].append(run(turn))
        progress(turn + 1)
    return found
