"""Measures of differences: their references, and results that are never within tolerance."""

import math
from dataclasses import replace

import numpy as np
import pytest

from lopa.export.verify.differences import Difference, OutputError, difference_of, differences_of_statistics
from lopa.runtime.contract import Statistics
from lopa.runtime.sessions.numpy_forward import statistics_from_logits

RNG = np.random.default_rng(20)
LOGITS = (RNG.standard_normal((2, 3, 5, 50)) * 4).astype(np.float32)
TEMPERATURE = np.array([1.0, 0.5], np.float32)


def right() -> Statistics:
    return statistics_from_logits(LOGITS, TEMPERATURE, keep_logits=True)


def differences(found: Statistics) -> dict[str, Difference]:
    return differences_of_statistics(found, LOGITS, TEMPERATURE)


def test_right_statistics_differ_by_rounding() -> None:
    found = differences(right())
    assert set(found) == {"topk_ids", "topk_logprobs", "entropy", "logits"}
    assert found["topk_ids"].absolute == 0
    assert found["logits"].absolute == 0
    assert 0 < found["topk_logprobs"].relative < 1e-6
    assert 0 < found["entropy"].relative < 1e-6


def test_statistics_at_another_temperature_differ() -> None:
    found = differences(statistics_from_logits(LOGITS, np.ones(2, np.float32), keep_logits=False))
    assert set(found) == {"topk_ids", "topk_logprobs", "entropy"}
    assert found["topk_ids"].absolute == 0
    assert found["topk_logprobs"].relative > 0.1
    assert found["entropy"].relative > 0.1


def test_order_counts_by_gaps_between_candidates() -> None:
    statistics = right()
    ids = statistics.topk_ids.copy()
    ids[1, 2, 3, :2] = ids[1, 2, 3, 1::-1]
    found = differences(replace(statistics, topk_ids=ids))["topk_ids"]
    gap = float(statistics.topk_logprobs[1, 2, 3, 0] - statistics.topk_logprobs[1, 2, 3, 1])
    assert found.absolute == pytest.approx(gap, rel=1e-4)


def test_near_ties_can_swap_order_and_cross_the_last_rank() -> None:
    logits = LOGITS[:1, :1, :1].copy()
    logits[..., :10] = 30 - np.arange(10) * 1e-7  # float32 cannot distinguish neighbours
    statistics = statistics_from_logits(logits, TEMPERATURE[:1], keep_logits=False)
    ids = np.array([9, 1, 2, 3, 4, 5, 6, 0]).reshape(1, 1, 1, 8)
    found = differences_of_statistics(replace(statistics, topk_ids=ids), logits, TEMPERATURE[:1])["topk_ids"]
    assert found.relative < 1e-6


@pytest.mark.parametrize("bad", [[0, 0], [-1, 3], [50, 3]])
def test_impossible_ids_are_never_within_tolerance(bad: list[int]) -> None:
    statistics = right()
    ids = statistics.topk_ids.copy()
    ids[0, 0, 0, :2] = bad
    assert differences(replace(statistics, topk_ids=ids))["topk_ids"].relative == math.inf


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_never_within_tolerance(value: float) -> None:
    statistics = right()
    entropy = statistics.entropy.copy()
    entropy[1, 0, 4] = value
    found = differences(replace(statistics, entropy=entropy))["entropy"]
    assert found.absolute == math.inf
    assert not OutputError("numpy", "entropy", found, 1e-4).ok
    assert difference_of(np.array([value]), np.array([value])).absolute == math.inf


def test_another_shape_is_never_within_tolerance() -> None:
    statistics = right()
    assert differences(replace(statistics, entropy=statistics.entropy[:, :, :4]))["entropy"].relative == math.inf
    assert differences(replace(statistics, topk_ids=statistics.topk_ids[..., :7]))["topk_ids"].relative == math.inf
    assert difference_of(np.ones((2, 1)), np.ones((2, 2))).relative == math.inf


def test_differences_are_relative_to_the_largest_value_of_the_reference() -> None:
    found = difference_of(np.array([1.0, -50.5]), np.array([1.25, -50.0]))
    assert (found.absolute, found.magnitude, found.relative) == (0.5, 50.0, 0.01)
    assert difference_of(np.array([0.3]), np.array([0.1]), least_magnitude=1.0).relative == pytest.approx(0.2)
    assert difference_of(np.zeros(3), np.zeros(3)).relative == 0
    assert difference_of(np.full(3, 1e-3), np.zeros(3)).relative > 1e30


def test_several_comparisons_keep_the_largest_of_each() -> None:
    both = Difference(0.1, 8.0, 0.01, 100.0).merged_with(Difference(0.4, 2.0, 0.35, 44.0))
    assert both == Difference(0.4, 8.0, 0.36, 144.0)
    assert both.relative_rms == pytest.approx(0.05)


@pytest.mark.parametrize(("absolute", "ok"), [(0.9e-4, True), (1.1e-4, False), (math.nan, False)])
def test_tolerance(absolute: float, *, ok: bool) -> None:
    assert OutputError("numpy", "entropy", Difference(absolute, 1.0, 0.0, 1.0), 1e-4).ok is ok


@pytest.mark.parametrize(("squares", "ok"), [(0.9e-8, True), (1.1e-8, False), (math.inf, False), (math.nan, False)])
def test_tolerance_of_the_root_mean_square(squares: float, *, ok: bool) -> None:
    error = OutputError("numpy", "entropy", Difference(0.5, 1.0, squares, 1.0), 1e-4, by_rms=True)
    assert error.measured == error.difference.relative_rms or math.isnan(squares)
    assert error.ok is ok


def test_root_mean_squares_are_relative_to_the_reference() -> None:
    found = difference_of(np.array([1.0, 2.0, 2.5, 4.0]), np.array([1.0, 2.0, 2.0, 4.0]))
    assert found.relative_rms == pytest.approx(0.5 / 5)
    assert difference_of(np.array([0.3, 0.1]), np.array([0.1, 0.1]), least_magnitude=1.0).relative_rms == pytest.approx(
        0.2 / math.sqrt(2)
    )
    assert difference_of(np.zeros(3), np.zeros(3)).relative_rms == 0
    assert difference_of(np.array([math.nan, 1.0]), np.ones(2)).relative_rms == math.inf
    assert difference_of(np.ones((2, 1)), np.ones((2, 2))).relative_rms == math.inf
