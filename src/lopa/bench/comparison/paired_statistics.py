"""Intervals of figures measured on a sample of prompts, and paired comparisons on the same prompts.

Shares have Wilson intervals. Ratios of sums, such as tokens per forward, have percentile bootstrap intervals (Efron
1979). The bootstrap draws the same number of prompts, with replacement. The draws depend on the number of prompts
only, so all configurations of a run share them. With few prompts the interval is too narrow. A single prompt has no
interval.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
STOP_LEVEL = 0.15
"""One-sided p-value at which a configuration with more lost than won questions is dropped early."""
_SEED = 0
_NORMAL_95 = 1.959963984540054
"""Standard deviations on each side of a normal distribution's 95 % interval."""
_NORMAL_90 = 1.2815515655446004
"""Standard deviations below the mean of a normal distribution's one-sided 90 % bound."""
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Interval:
    """Lower and upper bound of a 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """Share of correct answers with its 95 % interval (Wilson)."""

    correct: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoreDifference:
    """Difference of a configuration's score from the control's on the same questions. Scores are from 0 to 1."""

    questions: int
    lost: int
    """Questions with a lower score than the control's."""
    won: int
    """Questions with a higher score than the control's."""
    mean: float
    low: float
    """Lower bound of the mean at 90 % confidence, one-sided. It equals the mean if all differences are equal."""
    p: float
    """P-value of the two-sided sign test (McNemar's exact test) for one comparison. On average, one of twenty
    comparisons without a real difference is below 0.05.
    """

    @property
    def is_surely_lower(self) -> bool:
        """True if a sign test rejects that the configuration is as good as the control, at STOP_LEVEL."""
        return self.lost > self.won and tail_probability(self.lost, self.won) <= STOP_LEVEL


def score_difference(own: Sequence[float], control: Sequence[float]) -> ScoreDifference:
    """Return the difference of the scores `own` from those of the `control` on the same questions, at least one."""
    differences = [a - b for a, b in zip(own, control, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else 0.0
    lost, won = sum(each < 0 for each in differences), sum(each > 0 for each in differences)
    p = min(1.0, 2 * tail_probability(max(lost, won), min(lost, won)))
    return ScoreDifference(count, lost, won, mean, mean - _NORMAL_90 * error, p)


def tail_probability(lost: int, won: int) -> float:
    """Return the probability of at least `lost` heads among `lost + won` fair coins: McNemar's exact one-sided test."""
    coins = lost + won
    # Both operands stay integers, because with more than a thousand pairs they do not fit into a float.
    share: float = sum(math.comb(coins, k) for k in range(lost, coins + 1)) / 2**coins
    return share


def score_from_count(correct: int, prompts: int) -> Score:
    """Return the share of correct answers with its Wilson interval, which always lies within 0 and 1."""
    share, z2 = correct / prompts, _NORMAL_95**2
    centre = (share + z2 / (2 * prompts)) / (1 + z2 / prompts)
    half = _NORMAL_95 / (1 + z2 / prompts) * math.sqrt(share * (1 - share) / prompts + z2 / (4 * prompts**2))
    # If all or no answers are correct, rounding could exclude the share itself by one bit.
    return Score(correct, share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def resampled_ratios(above: Sequence[float], below: Sequence[float]) -> npt.NDArray[np.float64]:
    """Return sum(above) / sum(below) over the prompts of each resample: [RESAMPLES]."""
    counts = _counts(len(above))
    ratios: npt.NDArray[np.float64] = (counts @ np.array(above, np.float64)) / (counts @ np.array(below, np.float64))
    return ratios


def interval_of_ratio(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Return the interval of sum(above) / sum(below), or None for fewer than two prompts."""
    if len(above) < 2:
        return None
    return interval_from_resamples(sum(above) / sum(below), resampled_ratios(above, below))


def interval_from_resamples(found: float, resampled: npt.NDArray[np.float64] | list[float]) -> Interval:
    """Return the interval of a figure with the value `found` on all prompts and `resampled` on the resamples."""
    low, high = np.quantile(resampled, _TAILS)
    # The interval includes the value itself, which discontinuous figures or rounding could exclude.
    return Interval(min(found, float(low)), max(found, float(high)))


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (speed, score) on the Pareto front, by rising speed.

    A point dominates another if it is at least equal in speed and score, and better in one of them.
    """
    front: list[int] = []
    best = float("-inf")
    order = sorted(range(len(points)), key=lambda i: points[i], reverse=True)
    for i in order:
        speed, score = points[i]
        if score > best or (front and points[front[-1]] == (speed, score)):
            front.append(i)
            best = max(best, score)
    return front[::-1]


@lru_cache(maxsize=2)
def _counts(prompts: int) -> npt.NDArray[np.float64]:
    """Return how often each resample contains each prompt: [RESAMPLES, prompts]."""
    drawn = np.random.default_rng(_SEED).multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    return drawn.astype(np.float64)
