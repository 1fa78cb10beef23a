"""Accuracy under parallelism (AUP): the area under a curve of score against tokens per forward.

d3LLM (arXiv 2601.07568), section "AUP": with points (rho_i, y_i) by rising tokens per forward, y in percent,

    AUP = rho_1 y_1 + sum over i > 1 of (rho_i - rho_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2,
    W(y) = min(exp(-3 (1 - y / y_max)), 1).

Only points with y_i >= y_1 - 5 count. y_max is the best score of all compared curves. The value depends on the measured
points, so only curves of one run can be compared.
"""

import math
from collections.abc import Iterable
from itertools import pairwise

PENALTY = 3.0
"""Factor alpha of the penalty for a lower score."""
MAX_LOST = 5.0
"""Percentage points below the first score beyond which points do not count."""


def aup_from_points(points: Iterable[tuple[float, float]], best: float) -> float:
    """Return the AUP of `points` (tokens per forward, score in percent); `best` > 0 is the best score of all curves.

    If points have equal tokens per forward, only the best score counts.
    """
    by_speed: dict[float, float] = {}
    for speed, score in points:
        by_speed[speed] = max(score, by_speed.get(speed, score))
    ordered = sorted(by_speed.items())
    first_speed, first_score = ordered[0]
    kept = [(speed, score * _weight(score, best)) for speed, score in ordered if score >= first_score - MAX_LOST]
    return first_speed * first_score + sum((b - a) * (y + x) / 2 for (a, x), (b, y) in pairwise(kept))


def _weight(score: float, best: float) -> float:
    return min(math.exp(-PENALTY * (1 - score / best)), 1.0)
