"""Curves of score against tokens per forward, and their AUP with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lopa.bench.eval_set import SCORED_KIND, EvalItem
from lopa.bench.quality.aup import aup_from_points
from lopa.bench.quality.intervals import Interval, interval_from_resamples, resampled_ratios
from lopa.bench.quality.outcome import DecodeOutcome, Outcomes
from lopa.bench.quality.paired_comparison import tokens_per_forward
from lopa.bench.quality.quality_figures import outcomes_of_kind
from lopa.bench.quality.variants import Variant


@dataclass(frozen=True)
class Curve:
    """Configurations that differ in one option, on the prompts of one scored kind."""

    name: str
    configs: tuple[str, ...]
    """Configuration names, by rising tokens per forward."""
    aup: float
    """Accuracy under parallelism (lopa.bench.quality.aup) with the kind's best score as y_max."""
    aup_interval: Interval | None
    """95 % interval over similar prompts, or None with a single prompt."""
    kind: str = SCORED_KIND


@dataclass(frozen=True)
class _Point:
    """Point of a curve, with its values on each bootstrap resample, [RESAMPLES]."""

    speed: float
    score: float
    """Score in percent."""
    speeds: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]


def curves_from_outcomes(items: Sequence[EvalItem], outcomes: Outcomes) -> tuple[Curve, ...]:
    """Return the curves of the scored kinds, by kind and then in the order of their first configurations.

    A kind without correct answers has no curves.
    """
    defaults = {key: found for key, found in outcomes.items() if not key[1]}
    kinds = dict.fromkeys(item.kind for item in items)
    ordered = sorted(kinds, key=lambda kind: (kind != SCORED_KIND, kind))
    return tuple(
        curve
        for kind in ordered
        if all(item.verdict for item in items if item.kind == kind)
        for curve in _curves_of_kind(kind, outcomes_of_kind(items, defaults, kind))
    )


def _curves_of_kind(kind: str, outcomes: Outcomes) -> list[Curve]:
    points = {variant: _point(found) for (variant, _), found in outcomes.items()}
    best = max(point.score for point in points.values())
    if not best:
        return []
    several = len(next(iter(outcomes.values()))) > 1
    # The best configuration differs between resamples.
    bests = np.max([point.scores for point in points.values()], axis=0)
    variants: dict[str, list[Variant]] = {}
    for variant in points:
        variants.setdefault(variant.curve_name, []).append(variant)
    curves = []
    for name, own in variants.items():
        of_curve = sorted(((variant.name, points[variant]) for variant in own), key=lambda each: each[1].speed)
        aup = aup_from_points([(point.speed, point.score) for _, point in of_curve], best)
        curves.append(
            Curve(
                name=name,
                configs=tuple(config for config, _ in of_curve),
                aup=aup,
                aup_interval=_interval(aup, dict(of_curve), bests) if several else None,
                kind=kind,
            )
        )
    return curves


def _point(outcomes: Sequence[DecodeOutcome]) -> _Point:
    steps, tokens = [each.steps for each in outcomes], [each.tokens for each in outcomes]
    right, ones = [100.0 * bool(each.right) for each in outcomes], [1.0] * len(outcomes)
    return _Point(
        speed=tokens_per_forward(outcomes),
        score=sum(right) / len(outcomes),
        speeds=resampled_ratios(tokens, steps),
        scores=resampled_ratios(right, ones),
    )


def _interval(aup: float, points: Mapping[str, _Point], bests: npt.NDArray[np.float64]) -> Interval:
    speeds = np.array([point.speeds for point in points.values()]).T.tolist()
    scores = np.array([point.scores for point in points.values()]).T.tolist()
    return interval_from_resamples(
        aup,
        [
            aup_from_points(zip(speed, score, strict=True), best) if best else 0.0
            for speed, score, best in zip(speeds, scores, bests.tolist(), strict=True)
        ],
    )
