"""Accuracy under parallelism (AUP): the area under a curve of score against tokens per forward.

d3LLM (arXiv 2601.07568), section "AUP": with points (rho_i, y_i) by rising tokens per forward, y in percent,

    AUP = rho_1 y_1 + sum over i > 1 of (rho_i - rho_(i-1)) (y_i W(y_i) + y_(i-1) W(y_(i-1))) / 2,
    W(y) = min(exp(-3 (1 - y / y_max)), 1).

Only points with y_i >= y_1 - 5 count. y_max is the best score of all compared curves. The value depends on the measured
points, so only curves of one run can be compared.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lopa.bench.comparison.quality_figures import Row

_PENALTY = 3.0
"""Factor alpha of the penalty for a lower score."""
_MAX_LOST = 5.0
"""Percentage points below the first score beyond which points do not count."""


@dataclass(frozen=True)
class Curve:
    """Configurations that differ in one option, on the prompts of one scored kind."""

    name: str
    kind: str
    configs: tuple[str, ...]
    """Configuration names, by rising tokens per forward."""
    aup: float


def curves_from_rows(rows: Sequence[Row]) -> tuple[Curve, ...]:
    """Return the curves of each kind in the order of `rows`. A kind without correct answers has none."""
    points: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for row in rows:
        if row.measure.score is not None:
            point = (row.measure.tokens_per_forward, 100 * row.measure.score.share, row.config)
            points.setdefault((row.kind, row.curve), []).append(point)
    best = {kind: max(score for key in points if key[0] == kind for _, score, _ in points[key]) for kind, _ in points}
    return tuple(
        Curve(name, kind, tuple(config for *_, config in sorted(own)), aup_from_points(own, best[kind]))
        for (kind, name), own in points.items()
        if best[kind]
    )


def aup_from_points(points: Iterable[tuple[float, float, str]], best: float) -> float:
    """Return the AUP of points (tokens per forward, score in percent, name).

    `best` > 0 is the best score of all curves. If points have equal tokens per forward, only the best score counts.
    """
    ordered = sorted({speed: score for speed, score, _ in sorted(points)}.items())
    first_speed, first_score = ordered[0]
    kept = [(speed, score * _weight(score, best)) for speed, score in ordered if score >= first_score - _MAX_LOST]
    return first_speed * first_score + sum((b - a) * (y + x) / 2 for (a, x), (b, y) in pairwise(kept))


def _weight(score: float, best: float) -> float:
    return min(math.exp(-_PENALTY * (1 - score / best)), 1.0)
