"""How far a figure of some prompts may be from that of all prompts like them: 95 % intervals. Pure.

Shares have Wilson's. Ratios of sums (tokens in forwards, tokens in seconds) and what is made of them have those of
the bootstrap (Efron 1979, percentiles): the prompts are drawn again with replacement, as many as there are, and the
figure is taken of what was drawn. The draws depend on the number of prompts alone, so all configurations of one run
have the same. With few prompts such an interval is too narrow; of one prompt nothing can be said.
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
"""Standard deviations on either side of 95 % of a normal distribution."""
_TAILS = (0.025, 0.975)


@dataclass(frozen=True)
class Interval:
    """From the least to the most that is likely."""

    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """Share of right answers with its 95 % interval (Wilson)."""

    correct: int
    share: float
    low: float
    high: float


def score_from_count(correct: int, prompts: int) -> Score:
    """The share of right answers with its Wilson interval, which stays within 0 and 1 also for all or none right."""
    share, z2 = correct / prompts, _NORMAL_95**2
    centre = (share + z2 / (2 * prompts)) / (1 + z2 / prompts)
    half = _NORMAL_95 / (1 + z2 / prompts) * math.sqrt(share * (1 - share) / prompts + z2 / (4 * prompts**2))
    # The share is in its interval; rounding can leave it outside by a last bit where all or none are right.
    return Score(correct, share, min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))


def resampled_ratios(above: Sequence[float], below: Sequence[float]) -> npt.NDArray[np.float64]:
    """The sum of `above` over that of `below`, a number of each for every prompt, in every resample: [RESAMPLES]."""
    counts = _counts(len(above))
    ratios: npt.NDArray[np.float64] = (counts @ np.array(above, np.float64)) / (counts @ np.array(below, np.float64))
    return ratios


def interval_of_ratio(above: Sequence[float], below: Sequence[float]) -> Interval | None:
    """Of the sum of `above` over that of `below`; None for fewer than two prompts."""
    if len(above) < 2:
        return None
    return interval_from_resamples(sum(above) / sum(below), resampled_ratios(above, below))


def interval_from_resamples(found: float, resampled: npt.NDArray[np.float64] | list[float]) -> Interval:
    """Of a figure that is `found` on the prompts and `resampled` on the resamples."""
    low, high = np.quantile(resampled, _TAILS)
    # What was found is in its interval: a figure that jumps, or that rounding moves, may have its resamples beside it.
    return Interval(min(found, float(low)), max(found, float(high)))


@lru_cache(maxsize=2)
def _counts(prompts: int) -> npt.NDArray[np.float64]:
    """How often each prompt is in each resample: [RESAMPLES, prompts]."""
    drawn = np.random.default_rng(_SEED).multinomial(prompts, np.full(prompts, 1 / prompts), size=RESAMPLES)
    return drawn.astype(np.float64)
