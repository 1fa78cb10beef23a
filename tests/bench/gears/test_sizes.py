"""Sizes that occur, and the best few of them."""

import itertools
from collections import Counter

import numpy as np
import pytest

from lopa.bench.gears.sizes import Axes, axes_of_forwards, axes_within, fewer_sizes
from lopa.runtime.bundle.gears import ForwardSizes

LIMITS = ForwardSizes(4, 5, 250, 384, 257)
FORWARDS = Counter(
    {ForwardSizes(2, 3, 33, 64, 20): 5, ForwardSizes(2, 3, 48, 64, 20): 2, ForwardSizes(1, 1, 249, 128, 250): 1}
)


def test_all_sizes_that_occur_and_the_limits() -> None:
    axes = axes_of_forwards(FORWARDS, LIMITS)
    assert axes == Axes((1, 2, 4), (1, 3, 5), (48, 250), (64, 128, 384))
    assert axes.rounded(FORWARDS) == {ForwardSizes(2, 3, 48, 64, 0): 7, ForwardSizes(1, 1, 250, 128, 0): 1}
    every = axes.combinations(100)
    assert len(every) == 3 * 3 * 2 * 3
    assert {sizes.wanted for sizes in every} == {48, 100}


def test_axes_are_thinned_out_until_the_table_is_small() -> None:
    rng = np.random.default_rng(0)
    forwards = Counter({ForwardSizes(1, *map(int, rng.integers(1, (6, 250, 384))), 1): 1 for _ in range(300)})
    axes = axes_of_forwards(forwards, LIMITS)
    few = axes_within(axes, forwards, 5000)
    assert len(few.rounded(forwards)) * len(few.combinations(1)) <= 5000
    for name in ("requests", "branches", "window", "prefix"):
        assert set(getattr(few, name)) <= set(getattr(axes, name))
        assert getattr(few, name)[-1] == getattr(LIMITS, name)
    assert axes_within(axes, forwards, 10**9) == axes


@pytest.mark.parametrize("keep", [2, 3, 5, 8])
def test_the_kept_sizes_are_the_best(keep: int) -> None:
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
