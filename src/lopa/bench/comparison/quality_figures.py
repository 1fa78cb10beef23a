"""Figures of each configuration, with intervals, from the outcomes."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from lopa.bench.comparison.outcomes import DecodeOutcome
from lopa.bench.comparison.paired_statistics import (
    Interval,
    Score,
    ScoreDifference,
    interval_of_ratio,
    score_difference,
    score_from_count,
)
from lopa.bench.comparison.variants import Variant
from lopa.bench.eval_set import SCORED_KIND, EvalItem
from lopa.runtime.options import StrategyName

BASELINE = "d2f"
"""Baseline curve. Most faster published methods are no better than the baseline with a lower threshold."""
QualityOutcomes = dict[Variant, list[DecodeOutcome]]
"""Outcomes by configuration, one per prompt."""


@dataclass(frozen=True)
class Measure:
    """Figures of one configuration on the prompts of one kind. Intervals are 95 % intervals."""

    prompts: int
    score: Score | None
    """Score, or None for kinds that are not scored here."""
    steps: int
    """Number of forwards. The published scripts count one more per prompt, a round without a forward."""
    tokens: int
    """Generated tokens up to and including the first end-of-text."""
    generated_positions: int
    """All generated positions, as counted by the paper."""
    tokens_per_forward: float
    tokens_per_forward_interval: Interval | None
    """Interval over similar prompts, or None with a single prompt."""
    positions_per_forward: float
    seconds: float
    tokens_per_second: float
    """Sum of tokens divided by sum of seconds."""
    tokens_per_second_interval: Interval | None
    """Interval over similar prompts on this machine."""
    tokens_per_second_median: float
    """Median over the prompts."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of a configuration with a baseline configuration."""

    control: str
    """Name of the baseline configuration."""
    difference: ScoreDifference


@dataclass(frozen=True)
class Row:
    """Figures of one configuration on one kind of prompt."""

    config: str
    strategy: StrategyName
    branches: int | Literal["auto"] | None
    options: dict[str, Any]
    """Options of the configuration other than strategy and branches, with "inf" for infinity."""
    curve: str
    """Name of the curve that the configuration is a point of."""
    kind: str
    measure: Measure
    beside: Comparison | None
    """Comparison on the same prompts with the baseline configuration of the nearest speed. It is None for the baseline,
    and if the baseline was not measured or nothing is scored.
    """


def rows_from_outcomes(items: Sequence[EvalItem], outcomes: QualityOutcomes) -> tuple[Row, ...]:
    """Return a row for every kind and variant, math first. `outcomes` has one outcome per item, by variant."""
    kinds = sorted({item.kind for item in items}, key=lambda kind: (kind != SCORED_KIND, kind))
    rows: list[Row] = []
    for kind in kinds:
        chosen = [number for number, item in enumerate(items) if item.kind == kind]
        rows += _rows_of_kind(kind, {key: [found[i] for i in chosen] for key, found in outcomes.items()})
    return tuple(rows)


def measure_from_outcomes(outcomes: Sequence[DecodeOutcome]) -> Measure:
    """Return sums and ratios over the prompts of one kind."""
    steps, tokens = [each.steps for each in outcomes], [each.tokens for each in outcomes]
    positions, seconds = sum(each.generated_positions for each in outcomes), [each.seconds for each in outcomes]
    scores = [each.score for each in outcomes if each.score is not None]
    return Measure(
        prompts=len(outcomes),
        score=score_from_count(round(sum(scores)), len(outcomes)) if len(scores) == len(outcomes) else None,
        steps=sum(steps),
        tokens=sum(tokens),
        generated_positions=positions,
        tokens_per_forward=tokens_per_forward(outcomes),
        tokens_per_forward_interval=interval_of_ratio(tokens, steps),
        positions_per_forward=positions / sum(steps),
        seconds=sum(seconds),
        tokens_per_second=sum(tokens) / sum(seconds),
        tokens_per_second_interval=interval_of_ratio(tokens, seconds),
        tokens_per_second_median=statistics.median(each.tokens / each.seconds for each in outcomes),
    )


def tokens_per_forward(outcomes: Sequence[DecodeOutcome]) -> float:
    """Return all tokens divided by all steps."""
    return sum(each.tokens for each in outcomes) / sum(each.steps for each in outcomes)


def comparison_with_nearest(
    outcomes: Sequence[DecodeOutcome], controls: Mapping[str, Sequence[DecodeOutcome]]
) -> Comparison | None:
    """Return the comparison with the configuration of `controls` that is nearest in tokens per forward.

    Return None if there are no controls or the answers are not scored.
    """
    own = [each.score for each in outcomes if each.score is not None]
    if not controls or len(own) < len(outcomes):
        return None
    speed = tokens_per_forward(outcomes)
    name = min(controls, key=lambda control: abs(tokens_per_forward(controls[control]) - speed))
    return Comparison(name, score_difference(own, [each.score or 0.0 for each in controls[name]]))


def _rows_of_kind(kind: str, outcomes: QualityOutcomes) -> list[Row]:
    controls = {variant.name: found for variant, found in outcomes.items() if variant.curve_name == BASELINE}
    return [
        Row(
            config=variant.name,
            strategy=variant.strategy,
            branches=variant.branches,
            options={name: "inf" if value == math.inf else value for name, value in variant.options},
            curve=variant.curve_name,
            kind=kind,
            measure=measure_from_outcomes(own),
            beside=None if variant.name in controls else comparison_with_nearest(own, controls),
        )
        for variant, own in outcomes.items()
    ]


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
