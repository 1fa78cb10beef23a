"""Accuracy under parallelism: the published formula (arXiv 2601.07568), computed by hand."""

import math

import pytest

from lopa.bench.quality.aup import aup_from_points


def test_one_point_is_a_rectangle() -> None:
    assert aup_from_points([(4.0, 80.0)], 90.0) == pytest.approx(320.0)


def test_aup_without_a_loss_is_the_area_under_the_curve() -> None:
    assert aup_from_points([(1.0, 80.0), (3.0, 80.0)], 80.0) == pytest.approx(240.0)


def test_a_lower_score_weighs_less() -> None:
    weight = math.exp(-3 * (1 - 78 / 80))
    expected = 1 * 80 + (3 - 1) * (78 * weight + 80) / 2
    assert aup_from_points([(3.0, 78.0), (1.0, 80.0)], 80.0) == pytest.approx(expected)
    best = 90.0  # another curve has this score, so both points weigh less
    weights = [math.exp(-3 * (1 - score / best)) for score in (80, 78)]
    expected = 80 + (78 * weights[1] + 80 * weights[0])
    assert aup_from_points([(1.0, 80.0), (3.0, 78.0)], best) == pytest.approx(expected)


def test_points_that_lose_more_than_five_percent_are_excluded() -> None:
    kept = [(1.0, 80.0), (2.0, 75.0)]
    assert aup_from_points([*kept, (9.0, 74.9)], 80.0) == pytest.approx(aup_from_points(kept, 80.0))
    assert aup_from_points([*kept, (9.0, 75.0)], 80.0) > aup_from_points(kept, 80.0)


def test_the_best_score_of_equal_speeds_counts() -> None:
    assert aup_from_points([(2.0, 70.0), (2.0, 80.0)], 80.0) == pytest.approx(160.0)
