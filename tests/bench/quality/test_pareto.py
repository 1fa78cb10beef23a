"""The Pareto front consists of the points that no other point dominates."""

import numpy as np

from lopa.bench.quality.pareto import pareto_front


def test_the_front_follows_the_definition() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        points = [(float(x), float(y)) for x, y in rng.integers(0, 8, (int(rng.integers(1, 15)), 2))]
        found = pareto_front(points)
        plain = {
            i for i, (x, y) in enumerate(points) if not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points)
        }
        assert set(found) == plain
        assert len(found) == len(plain)
        speeds = [points[i][0] for i in found]
        assert speeds == sorted(speeds)


def test_an_empty_front() -> None:
    assert pareto_front([]) == []
