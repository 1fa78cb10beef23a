"""Grid of the sizes that shape buckets may have: all occurring sizes, or the best of them if there are too many."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np

from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

WINDOW_MULTIPLE = 16
"""Granularity of windows in rows. Blocks and the tiles of matrix units are multiples of it."""


@dataclass(frozen=True)
class SizeGrid:
    """Sizes per axis of the contract, ascending. The last one is the limit."""

    requests: tuple[int, ...]
    branches: tuple[int, ...]
    window: tuple[int, ...]
    prefix: tuple[int, ...]

    def combinations(self, wanted: int) -> list[Sizes]:
        """Return all combinations of sizes.

        Each combination samples its whole window, but at most `wanted` positions.
        """
        combinations = product(self.requests, self.branches, self.window, self.prefix)
        return [Sizes(*sizes, wanted=min(sizes[2], wanted)) for sizes in combinations]

    def rounded(self, forwards: Mapping[Sizes, int]) -> Counter[Sizes]:
        """Return how often each shape runs, with every size rounded up to the grid.

        Shapes that differ only in sampled positions are merged, since a bucket samples its whole window.
        """
        shapes: Counter[Sizes] = Counter()
        for sizes, count in forwards.items():
            up = {name: axis[bisect_left(axis, _needed(sizes, name))] for name, axis in vars(self).items()}
            shapes[Sizes(**up, wanted=0)] += count
        return shapes


def grid_of_forwards(forwards: Mapping[Sizes, int], limits: Sizes) -> SizeGrid:
    """Return the grid of all occurring sizes, the limits, one request and one branch."""

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


def grid_within(grid: SizeGrid, forwards: Mapping[Sizes, int], max_cells: int) -> SizeGrid:
    """Return `grid` with fewer sizes: at most `max_cells` pairs of a shape and a combination.

    The longest axis repeatedly loses the quarter of its sizes whose removal adds the least padding.
    """
    while len(grid.rounded(forwards)) * len(grid.combinations(1)) > max_cells:
        name = max((field.name for field in fields(grid)), key=lambda name: len(getattr(grid, name)))
        axis: tuple[int, ...] = getattr(grid, name)
        counts = Counter[int]()
        for sizes, count in forwards.items():
            counts[axis[bisect_left(axis, _needed(sizes, name))]] += count
        grid = replace(grid, **{name: fewer_sizes(axis, [counts[size] for size in axis], len(axis) * 3 // 4)})
    return grid


def fewer_sizes(sizes: Sequence[int], counts: Sequence[int], keep: int) -> tuple[int, ...]:
    """Return `keep` of the ascending `sizes` (at least 2), including first and last, that minimize the padding.

    Size i occurs counts[i] times. The search is dynamic programming over the last selected size.
    """
    values, weights = np.array(sizes), np.array(counts)
    number = len(sizes)
    before = np.concatenate([[0], np.cumsum(weights)])
    summed = np.concatenate([[0], np.cumsum(weights * values)])
    # added[i, j]: padding from rounding the sizes after i up to size j.
    added = values[None, :] * (before[None, 1:] - before[1:, None]) - (summed[None, 1:] - summed[1:, None])
    added = np.where(np.arange(number)[:, None] < np.arange(number)[None, :], added, np.inf)
    padding = np.where(np.arange(number) == 0, 0.0, np.inf)
    steps = []
    for _ in range(max(keep, 2) - 1):
        through = padding[:, None] + added
        steps.append(through.argmin(axis=0))
        padding = through.min(axis=0)
    kept = [number - 1]
    for predecessors in reversed(steps):
        kept.append(int(predecessors[kept[-1]]))
    return tuple(sizes[place] for place in reversed(kept))


def _needed(sizes: Sizes, name: str) -> int:
    """Return the size that an axis needs. A bucket samples as many positions as its window has rows, up to the limit.

    A position may be sampled twice.
    """
    needed: int = max(sizes.window, sizes.wanted) if name == "window" else getattr(sizes, name)
    return needed
