"""95 % intervals of figures measured on a sample of prompts.

Shares have Wilson intervals. Ratios of sums, such as tokens per forward, have percentile bootstrap intervals (Efron
1979). The bootstrap draws the same number of prompts, with replacement. The draws depend on the number of prompts
only, so all configurations of a run share them. With few prompts the interval is too narrow. A single prompt has no
interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

RESAMPLES = 2000
_SEED = 0
_NORMAL_95 = 1.959963984540054
"""Standard deviations on each side of a normal distribution's 95 % interval."""
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


@lru_cache(maxsize=2)
def _counts(prompts: int) -> npt.NDArray[np.float64]:
    """Return how often each resample contains each prompt: [RESAMPLES, prompts]."""
    drawn = np.random.default_rng(_SEED).multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    return drawn.astype(np.float64)
