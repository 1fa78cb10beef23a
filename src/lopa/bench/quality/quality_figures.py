"""Figures of each configuration, with intervals, from the outcomes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lopa.bench.eval_set import SCORED_KIND, EvalItem
from lopa.bench.quality.intervals import Interval, Score, interval_of_ratio, score_from_count
from lopa.bench.quality.outcome import DecodeOutcome, Outcomes
from lopa.bench.quality.paired_comparison import CONTROL, Comparison, comparison_with_nearest, tokens_per_forward
from lopa.runtime.options import StrategyName


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
    """Interval over similar prompts (lopa.bench.quality.intervals), or None with a single prompt."""
    window_tokens_per_forward: float
    seconds: float
    tokens_per_second: float
    """Sum of tokens divided by sum of seconds."""
    tokens_per_second_interval: Interval | None
    """Interval over similar prompts on this machine."""
    tokens_per_second_median: float
    """Median over the prompts."""
    limit: float | None = None
    """Upper bound of the expected accuracy in this number of forwards (EvalItem.limits), or None if it is unknown for
    some prompt.
    """


@dataclass(frozen=True)
class Row:
    """Figures of one configuration on one kind of prompt."""

    config: str
    strategy: StrategyName
    branches: int | Literal["auto"] | None
    options: dict[str, Any]
    """Options of the configuration other than strategy and branches."""
    curve: str
    """Name of the curve that the configuration is a point of."""
    kind: str
    default: Measure
    published: Measure | None
    """Figures in reference mode, or None for strategies that the published implementation lacks."""
    steps_saved: int | None
    """Steps that the default mode saves compared with reference mode on the same prompts."""
    beside: Comparison | None
    """Comparison on the same prompts with the baseline configuration of the nearest speed. It is None for the baseline,
    and if the baseline was not measured or nothing is scored.
    """


def rows_from_outcomes(items: Sequence[EvalItem], outcomes: Outcomes) -> tuple[Row, ...]:
    """Return a row for every kind and variant. `outcomes` has one outcome per item, by variant and mode."""
    kinds = sorted({item.kind for item in items}, key=lambda kind: (kind != SCORED_KIND, kind))
    return tuple(row for kind in kinds for row in _rows_of_kind(kind, outcomes_of_kind(items, outcomes, kind)))


def outcomes_of_kind(items: Sequence[EvalItem], outcomes: Outcomes, kind: str) -> Outcomes:
    """Return the outcomes of the prompts of one kind."""
    chosen = [i for i, item in enumerate(items) if item.kind == kind]
    return {key: [found[i] for i in chosen] for key, found in outcomes.items()}


def measure_from_outcomes(outcomes: Sequence[DecodeOutcome]) -> Measure:
    """Return sums and ratios over the prompts of one kind."""
    steps, tokens = [each.steps for each in outcomes], [each.tokens for each in outcomes]
    generated_positions, seconds = (
        sum(each.generated_positions for each in outcomes),
        [each.seconds for each in outcomes],
    )
    verdicts = [each.right for each in outcomes if each.right is not None]
    limits = [each.limit for each in outcomes if each.limit is not None]
    return Measure(
        prompts=len(outcomes),
        score=score_from_count(sum(verdicts), len(outcomes)) if len(verdicts) == len(outcomes) else None,
        steps=sum(steps),
        tokens=sum(tokens),
        generated_positions=generated_positions,
        tokens_per_forward=tokens_per_forward(outcomes),
        tokens_per_forward_interval=interval_of_ratio(tokens, steps),
        window_tokens_per_forward=generated_positions / sum(steps),
        seconds=sum(seconds),
        tokens_per_second=sum(tokens) / sum(seconds),
        tokens_per_second_interval=interval_of_ratio(tokens, seconds),
        tokens_per_second_median=statistics.median(each.tokens / each.seconds for each in outcomes),
        limit=statistics.fmean(limits) if len(limits) == len(outcomes) else None,
    )


def _rows_of_kind(kind: str, outcomes: Outcomes) -> list[Row]:
    controls = {
        variant.name: found
        for (variant, published), found in outcomes.items()
        if variant.curve_name == CONTROL and not published
    }
    rows = []
    for variant in dict.fromkeys(variant for variant, _ in outcomes):
        own, twin = outcomes[variant, False], outcomes.get((variant, True))
        default, published = measure_from_outcomes(own), None if twin is None else measure_from_outcomes(twin)
        rows.append(
            Row(
                config=variant.name,
                strategy=variant.strategy,
                branches=variant.branches,
                options=dict(variant.options),
                curve=variant.curve_name,
                kind=kind,
                default=default,
                published=published,
                steps_saved=None if published is None else published.steps - default.steps,
                beside=None if variant.name in controls else comparison_with_nearest(own, controls),
            )
        )
    return rows
