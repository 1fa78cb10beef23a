"""The sizes that buckets are made of: all that occur in a set of forwards, or the best few where those are too many."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

WINDOW_MULTIPLE = 16
"""Windows are rounded up to this: blocks are multiples of it, and so are the tiles of matrix units."""


@dataclass(frozen=True)
class SizeGrid:
    """Sizes by axis of the contract, ascending; the last is the limit."""

    requests: tuple[int, ...]
    branches: tuple[int, ...]
    window: tuple[int, ...]
    prefix: tuple[int, ...]

    def combinations(self, wanted: int) -> list[Sizes]:
        """All of them; wanted rows follow the window up to `wanted`."""
        every = product(self.requests, self.branches, self.window, self.prefix)
        return [Sizes(*sizes, wanted=min(sizes[2], wanted)) for sizes in every]

    def rounded(self, forwards: Mapping[Sizes, int]) -> Counter[Sizes]:
        """How often each shape runs, every size rounded up to one of these.

        Shapes that differ in wanted rows alone become one: what has room for the window has room for those.
        """
        shapes: Counter[Sizes] = Counter()
        for sizes, count in forwards.items():
            up = {name: axis[bisect_left(axis, _needed(sizes, name))] for name, axis in vars(self).items()}
            shapes[Sizes(**up, wanted=0)] += count
        return shapes


def grid_of_forwards(forwards: Mapping[Sizes, int], limits: Sizes) -> SizeGrid:
    """Every size that occurs, every limit, and one request and one branch, which always can be run."""

    def axis(name: str, smallest: int, multiple: int = 1) -> tuple[int, ...]:
        occurring = {-(-_needed(sizes, name) // multiple) * multiple for sizes in forwards}
        last: int = getattr(limits, name)
        return tuple(sorted({min(size, last) for size in occurring} | {smallest, last}))

    return SizeGrid(
        requests=axis("requests", 1),
        branches=axis("branches", 1),
        window=axis("window", limits.window, WINDOW_MULTIPLE),
        prefix=axis("prefix", limits.prefix, TILE),
    )


def grid_within(grid: SizeGrid, forwards: Mapping[Sizes, int], most_cells: int) -> SizeGrid:
    """`grid`, thinned out until there are at most `most_cells` pairs of a shape and a combination.

    The longest axis loses a quarter of its sizes at a time, those without which the forwards grow least.
    """
    while len(grid.rounded(forwards)) * len(grid.combinations(1)) > most_cells:
        name = max((field.name for field in fields(grid)), key=lambda name: len(getattr(grid, name)))
        axis: tuple[int, ...] = getattr(grid, name)
        counts = Counter[int]()
        for sizes, count in forwards.items():
            counts[axis[bisect_left(axis, _needed(sizes, name))]] += count
        grid = replace(grid, **{name: fewer_sizes(axis, [counts[size] for size in axis], len(axis) * 3 // 4)})
    return grid


def fewer_sizes(sizes: Sequence[int], counts: Sequence[int], keep: int) -> tuple[int, ...]:
    """`keep` of the ascending `sizes` (at least 2), first and last among them, so that rounding up adds least.

    Size i occurs counts[i] times. Dynamic programming over the last size that was kept.
    """
    values, weights = np.array(sizes), np.array(counts)
    number = len(sizes)
    before = np.concatenate([[0], np.cumsum(weights)])
    summed = np.concatenate([[0], np.cumsum(weights * values)])
    # added[i, j]: what rounding the sizes behind i up to j adds.
    added = values[None, :] * (before[None, 1:] - before[1:, None]) - (summed[None, 1:] - summed[1:, None])
    added = np.where(np.arange(number)[:, None] < np.arange(number)[None, :], added, np.inf)
    lower = np.where(np.arange(number) == 0, 0.0, np.inf)
    steps = []
    for _ in range(max(keep, 2) - 1):
        through = lower[:, None] + added
        steps.append(through.argmin(axis=0))
        lower = through.min(axis=0)
    kept = [number - 1]
    for came_from in reversed(steps):
        kept.append(int(came_from[kept[-1]]))
    return tuple(sizes[place] for place in reversed(kept))


def _needed(sizes: Sizes, name: str) -> int:
    """A bucket has as many wanted rows as window rows, up to the limit; the same row may be wanted twice."""
    needed: int = max(sizes.window, sizes.wanted) if name == "window" else getattr(sizes, name)
    return needed
