"""Intervals compared with a plain float64 implementation, and tests of differences with exact figures."""

import math

import numpy as np
import pytest

from lopa.bench.comparison.paired_statistics import (
    Interval,
    interval_from_resamples,
    interval_of_ratio,
    pareto_front,
    score_difference,
    score_from_count,
    tail_probability,
)


def drawn_prompts(rng: np.random.Generator, prompts: int) -> tuple[list[int], list[int]]:
    """Draw plausible tokens and steps of decodes: long answers take more steps, and some prompts are easier."""
    steps = rng.integers(4, 30, prompts)
    return (steps * rng.uniform(2, 6, prompts)).round().astype(int).tolist(), steps.tolist()


def plain_interval(above: list[int], below: list[int], rng: np.random.Generator) -> Interval:
    """Return a bootstrap interval computed prompt by prompt."""
    found = []
    for _ in range(4000):
        chosen = rng.integers(0, len(above), len(above)).tolist()
        found.append(sum(float(above[i]) for i in chosen) / sum(float(below[i]) for i in chosen))
    found.sort()
    return Interval(found[100], found[-101])


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_is_the_plain_bootstrap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    above, below = drawn_prompts(rng, 40)
    found, plain = interval_of_ratio(above, below), plain_interval(above, below, rng)
    assert found is not None
    wide = plain.high - plain.low
    assert wide > 0.1
    assert found.low == pytest.approx(plain.low, abs=0.08 * wide)
    assert found.high == pytest.approx(plain.high, abs=0.08 * wide)
    assert found.low < sum(above) / sum(below) < found.high


def test_wilson_interval() -> None:
    found = score_from_count(8, 10)
    assert (found.share, found.low, found.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    none, every = score_from_count(0, 5), score_from_count(5, 5)
    assert (none.low, none.high) == pytest.approx((0, 0.4345), abs=1e-4)
    assert (every.low, every.high) == pytest.approx((0.5655, 1), abs=1e-4)
    for prompts in range(1, 300):  # otherwise a plot of all correct answers has a negative error bar
        for correct in (0, 1, prompts):
            score = score_from_count(correct, prompts)
            assert 0 <= score.low <= score.share <= score.high <= 1


def test_score_difference_and_sign_test() -> None:
    found = score_difference([1.0, 0.0, 1.0, 0.5], [1.0, 1.0, 0.0, 0.0])
    assert (found.lost, found.won, found.questions) == (1, 2, 4)
    assert found.mean == pytest.approx(0.125)
    spread = np.std([0.0, -1.0, 1.0, 0.5], ddof=1) / 2
    assert found.low == pytest.approx(0.125 - 1.2815515655446004 * spread)
    assert score_difference([1.0, 0.0], [1.0, 0.0]).low == 0.0
    assert tail_probability(5, 0) == 1 / 32
    assert tail_probability(3, 2) == pytest.approx(0.5)
    assert tail_probability(0, 4) == 1.0


def test_the_two_sided_p_value_is_symmetric() -> None:
    def p(won: int, lost: int) -> float:
        return score_difference([1.0] * won + [0.0] * lost + [1.0], [0.0] * won + [1.0] * lost + [1.0]).p

    assert (p(5, 5), p(0, 0)) == (1.0, 1.0)
    assert p(8, 1) == p(1, 8) == pytest.approx(2 * (1 + 9) / 2**9)
    # More outcomes than a float can represent. The result is close to a normal distribution.
    assert p(2050, 1950) == pytest.approx(math.erfc(100 / math.sqrt(2 * 4000)), rel=0.05)


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


def test_one_prompt_has_no_interval() -> None:
    assert interval_of_ratio([30], [7]) is None
    assert interval_of_ratio([30, 31], [7, 7]) is not None


def test_the_interval_contains_the_value() -> None:
    assert interval_from_resamples(5.0, [1.0, 2.0, 3.0]).high == 5.0
    assert interval_from_resamples(0.5, [1.0, 2.0, 3.0]).low == 0.5


def test_an_empty_front() -> None:
    assert pareto_front([]) == []
