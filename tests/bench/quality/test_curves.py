"""Intervals of AUP values: the bootstrap draws the same prompts for every configuration."""

import numpy as np
import pytest

from lopa.bench.eval_set import EvalItem
from lopa.bench.quality.aup import aup_from_points
from lopa.bench.quality.curves import Curve, curves_from_outcomes
from lopa.bench.quality.outcome import DecodeOutcome, Outcomes
from lopa.bench.quality.variants import Variant

CAREFUL = Variant("careful", "d2f", curve="d2f")
BOLD = Variant("bold", "d2f", curve="d2f")
OTHER = Variant("other", "lopa", curve="lopa")


def drawn_outcomes(rng: np.random.Generator, prompts: int) -> Outcomes:
    """Return outcomes in which the second curve has twice the speed and fewer correct answers."""
    found: Outcomes = {}
    for variant, share, speed in ((CAREFUL, 0.85, 3.0), (BOLD, 0.82, 6.0), (OTHER, 0.9, 5.0)):
        tokens = rng.integers(20, 90, prompts)
        steps = np.maximum(1, tokens / speed * rng.uniform(0.7, 1.3, prompts)).astype(int)
        rights = rng.random(prompts) < share
        found[variant, False] = [
            DecodeOutcome(bool(right), int(step), int(token), 96, 1.0)
            for right, step, token in zip(rights, steps, tokens, strict=True)
        ]
    return found


def items(prompts: int, kind: str = "math") -> list[EvalItem]:
    return [EvalItem("", "#### 1", kind)] * prompts


def plain_aups(outcomes: Outcomes, chosen: list[int]) -> list[float]:
    """Return the AUP of d2f and lopa on the chosen prompts, written out."""
    points = {}
    for (variant, _), found in outcomes.items():
        own = [found[i] for i in chosen]
        speed = sum(each.tokens for each in own) / sum(each.steps for each in own)
        points[variant] = (speed, 100 * sum(bool(each.right) for each in own) / len(own))
    best = max(score for _, score in points.values())
    curves = ((CAREFUL, BOLD), (OTHER,))
    return [aup_from_points([points[variant] for variant in curve], best) for curve in curves]


def test_the_interval_is_the_plain_bootstrap() -> None:
    rng = np.random.default_rng(3)
    outcomes = drawn_outcomes(rng, 50)
    curves = curves_from_outcomes(items(50), outcomes)
    assert [curve.name for curve in curves] == ["d2f", "lopa"]
    assert [curve.aup for curve in curves] == pytest.approx(plain_aups(outcomes, list(range(50))))
    plain = np.array([plain_aups(outcomes, rng.integers(0, 50, 50).tolist()) for _ in range(1000)])
    for curve, low, high in zip(curves, *np.quantile(plain, (0.025, 0.975), axis=0), strict=True):
        assert curve.aup_interval is not None
        assert high - low > 20
        assert curve.aup_interval.low == pytest.approx(low, abs=0.15 * (high - low))
        assert curve.aup_interval.high == pytest.approx(high, abs=0.15 * (high - low))


def test_the_best_score_is_that_of_the_resample() -> None:
    """Each resample has its own best score. It rises if another curve answers the prompts that this one misses."""
    first = [DecodeOutcome(i < 100, 10, 10, 32, 1.0) for i in range(200)]
    faster = [DecodeOutcome(i < 100, 5, 10, 32, 1.0) for i in range(200)]
    others = [DecodeOutcome(i >= 100, 10, 10, 32, 1.0) for i in range(200)]
    outcomes: Outcomes = {(CAREFUL, False): first, (BOLD, False): faster, (OTHER, False): others}
    d2f, _ = curves_from_outcomes(items(200), outcomes)
    assert d2f.aup == pytest.approx(100)
    share = np.quantile(np.random.default_rng(4).binomial(200, 0.5, 4000) / 200, 0.025)
    low = 100 * share * (1 + np.exp(-3 * (1 - share / (1 - share))))
    assert d2f.aup_interval is not None
    assert d2f.aup_interval.low == pytest.approx(low, abs=3)


def test_similar_prompts_have_a_narrow_interval_and_one_prompt_none() -> None:
    alike: Outcomes = {(OTHER, False): [DecodeOutcome(True, 4, 20, 32, 1.0)] * 30}
    (curve,) = curves_from_outcomes(items(30), alike)
    assert curve.aup_interval is not None
    assert (curve.aup_interval.low, curve.aup, curve.aup_interval.high) == pytest.approx((500, 500, 500))
    (single,) = curves_from_outcomes(items(1), {(OTHER, False): alike[OTHER, False][:1]})
    assert single == Curve("lopa", ("other",), 500.0, None, "math")


def test_resamples_without_a_right_answer_have_no_area() -> None:
    rare: Outcomes = {(OTHER, False): [DecodeOutcome(i == 0, 4, 20, 32, 1.0) for i in range(3)]}
    (curve,) = curves_from_outcomes(items(3), rare)
    assert curve.aup_interval is not None
    assert curve.aup_interval.low == 0


def test_no_curve_without_correct_or_scored_answers() -> None:
    wrong: Outcomes = {(OTHER, False): [DecodeOutcome(False, 4, 20, 32, 1.0)] * 3}
    assert curves_from_outcomes(items(3), wrong) == ()
    unscored: Outcomes = {(OTHER, False): [DecodeOutcome(None, 4, 20, 32, 1.0)] * 3}
    assert curves_from_outcomes(items(3, "code"), unscored) == ()
