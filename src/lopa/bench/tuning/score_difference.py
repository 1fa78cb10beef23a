"""Paired comparison of the scores of two configurations on the same questions."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

STOP_LEVEL = 0.15
"""One-sided p-value at which a configuration with more lost than won questions is dropped early."""
_NORMAL_90 = 1.2815515655446004
"""Standard deviations below the mean of a normal distribution's one-sided 90 % bound."""


@dataclass(frozen=True)
class ScoreDifference:
    """Difference of a configuration's score from the control's. Scores are from 0 to 1."""

    questions: int
    lost: int
    """Questions with a lower score than the control's."""
    won: int
    """Questions with a higher score than the control's."""
    mean: float
    low: float
    """Lower bound of the mean at 90 % confidence, one-sided. It equals the mean if all differences are equal."""

    @property
    def is_surely_lower(self) -> bool:
        """True if a sign test rejects that the configuration is as good as the control, at STOP_LEVEL."""
        return self.lost > self.won and tail_probability(self.lost, self.won) <= STOP_LEVEL


def score_difference(own: Sequence[float], control: Sequence[float]) -> ScoreDifference:
    """Return the difference of the scores `own` from those of the `control` on the same questions, at least one."""
    differences = [a - b for a, b in zip(own, control, strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    error = statistics.stdev(differences) / math.sqrt(count) if count > 1 else 0.0
    return ScoreDifference(
        questions=count,
        lost=sum(each < 0 for each in differences),
        won=sum(each > 0 for each in differences),
        mean=mean,
        low=mean - _NORMAL_90 * error,
    )


def tail_probability(lost: int, won: int) -> float:
    """Return the probability of at least `lost` heads among `lost + won` fair coins: McNemar's exact one-sided test."""
    coins = lost + won
    share: float = sum(math.comb(coins, k) for k in range(lost, coins + 1)) / 2**coins
    return share
