"""The grid of occurring sizes, and its reduction."""

import itertools
from collections import Counter

import numpy as np
import pytest

from lopa.bench.buckets.size_grid import SizeGrid, fewer_sizes, grid_of_forwards, grid_within
from lopa.runtime.contract.sizes import Sizes

LIMITS = Sizes(4, 5, 250, 384, 257)
FORWARDS = Counter({Sizes(2, 3, 33, 64, 20): 5, Sizes(2, 3, 48, 64, 20): 2, Sizes(1, 1, 249, 128, 250): 1})


def test_the_grid_has_all_occurring_sizes_and_the_limits() -> None:
    grid = grid_of_forwards(FORWARDS, LIMITS)
    assert grid == SizeGrid((1, 2, 4), (1, 3, 5), (48, 250), (64, 128, 384))
    assert grid.rounded(FORWARDS) == {Sizes(2, 3, 48, 64, 0): 7, Sizes(1, 1, 250, 128, 0): 1}
    every = grid.combinations(100)
    assert len(every) == 3 * 3 * 2 * 3
    assert {sizes.wanted for sizes in every} == {48, 100}


def test_axes_are_reduced_until_the_table_is_small() -> None:
    rng = np.random.default_rng(0)
    forwards = Counter({Sizes(1, *map(int, rng.integers(1, (6, 250, 384))), 1): 1 for _ in range(300)})
    grid = grid_of_forwards(forwards, LIMITS)
    few = grid_within(grid, forwards, 5000)
    assert len(few.rounded(forwards)) * len(few.combinations(1)) <= 5000
    for name in ("requests", "branches", "window", "prefix"):
        assert set(getattr(few, name)) <= set(getattr(grid, name))
        assert getattr(few, name)[-1] == getattr(LIMITS, name)
    assert grid_within(grid, forwards, 10**9) == grid


@pytest.mark.parametrize("keep", [2, 3, 5, 8])
def test_the_kept_sizes_are_optimal(keep: int) -> None:
    rng = np.random.default_rng(keep)
    for _ in range(10):
        sizes = sorted(rng.choice(200, 8, replace=False).tolist())
        counts = rng.integers(0, 9, 8).tolist()

        def added(kept: tuple[int, ...], sizes: list[int] = sizes, counts: list[int] = counts) -> int:
            return sum(
                count * (min(each for each in kept if each >= size) - size)
                for size, count in zip(sizes, counts, strict=True)
            )

        choices = [(sizes[0], *middle, sizes[-1]) for middle in itertools.combinations(sizes[1:-1], keep - 2)]
        found = fewer_sizes(sizes, counts, keep)
        assert len(found) == keep
        assert added(found) == min(map(added, choices))
