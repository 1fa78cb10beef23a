"""Accuracy under parallelism: the published formula (arXiv 2601.07568), computed by hand."""

import math

import pytest

from lopa.bench.comparison.outcomes import DecodeOutcome
from lopa.bench.comparison.quality_figures import Curve, aup_from_points, curves_from_rows, rows_from_outcomes
from lopa.bench.comparison.variants import Variant
from lopa.bench.eval_set import EvalItem


def points(*pairs: tuple[float, float]) -> list[tuple[float, float, str]]:
    return [(speed, score, "") for speed, score in pairs]


def test_a_lower_score_weighs_less() -> None:
    weight = math.exp(-3 * (1 - 78 / 80))
    expected = 1 * 80 + (3 - 1) * (78 * weight + 80) / 2
    assert aup_from_points(points((3.0, 78.0), (1.0, 80.0)), 80.0) == pytest.approx(expected)
    best = 90.0  # another curve has this score, so both points weigh less
    weights = [math.exp(-3 * (1 - score / best)) for score in (80, 78)]
    expected = 80 + (78 * weights[1] + 80 * weights[0])
    assert aup_from_points(points((1.0, 80.0), (3.0, 78.0)), best) == pytest.approx(expected)


def test_points_that_lose_more_than_five_percent_are_excluded() -> None:
    kept = [(1.0, 80.0), (2.0, 75.0)]
    expected = aup_from_points(points(*kept), 80.0)
    assert aup_from_points(points(*kept, (9.0, 74.9)), 80.0) == pytest.approx(expected)
    assert aup_from_points(points(*kept, (9.0, 75.0)), 80.0) > expected


def test_the_best_score_of_equal_speeds_counts() -> None:
    assert aup_from_points(points((2.0, 70.0), (2.0, 80.0)), 80.0) == pytest.approx(160.0)


def outcomes(steps: int, *scores: float | None) -> list[DecodeOutcome]:
    return [DecodeOutcome(steps=steps, tokens=60, generated_positions=64, seconds=1.0, score=score) for score in scores]


def test_curves_are_by_strategy_and_scored_kind() -> None:
    items = [EvalItem("a", "1", "math"), EvalItem("b", "2", "math"), EvalItem("c", "", "code")]
    rows = rows_from_outcomes(
        items,
        {
            Variant("d2f 0.5", "d2f", None, curve="d2f"): outcomes(10, 1.0, 0.0, None),
            Variant("lopa", "lopa", 3): outcomes(15, 0.0, 1.0, None),
            Variant("d2f 0.9", "d2f", None, curve="d2f"): outcomes(20, 1.0, 1.0, None),
        },
    )
    assert curves_from_rows(rows) == (
        Curve("d2f", "math", ("d2f 0.9", "d2f 0.5"), 300.0),
        Curve("lopa", "math", ("lopa",), 4 * 50.0),
    )
    nothing = rows_from_outcomes(items, {Variant("lopa", "lopa", 3): outcomes(15, 0.0, 0.0, None)})
    assert curves_from_rows(nothing) == ()
