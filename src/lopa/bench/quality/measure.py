"""Figures of the outcomes: of each configuration, with their intervals. Pure; does not know how a report is shown."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lopa.bench.eval_set import SCORED_KIND, EvalItem
from lopa.bench.quality.comparison import CONTROL, Comparison, comparison_with_nearest, tokens_per_forward
from lopa.bench.quality.intervals import Interval, Score, interval_of_ratio, score_from_count
from lopa.bench.quality.outcome import Outcome, Outcomes
from lopa.runtime.plan import StrategyName


@dataclass(frozen=True)
class Measure:
    """One configuration on the prompts of one kind; intervals are 95 % ones."""

    prompts: int
    score: Score | None
    """None for kinds that are not scored here."""
    steps: int
    """Forward rounds. The published scripts count one more for each prompt, a round that makes no call."""
    tokens: int
    """Generated ids up to and including the first end-of-text."""
    window_tokens: int
    """All generated positions, which is what the paper counts."""
    tokens_per_forward: float
    tokens_per_forward_interval: Interval | None
    """Over prompts like these (lopa.bench.quality.intervals); None of a single one."""
    window_tokens_per_forward: float
    seconds: float
    tokens_per_second: float
    """All tokens in all seconds."""
    tokens_per_second_interval: Interval | None
    """Over prompts like these on this machine as it was."""
    tokens_per_second_median: float
    """Over the prompts."""
    limit: float | None = None
    """The share of right answers that could be expected at best of what decides independently, in as many forwards as
    each answer took (EvalItem.limits); None where that is not known of every prompt."""


@dataclass(frozen=True)
class Row:
    """One configuration and one kind of prompt."""

    config: str
    strategy: StrategyName
    branches: int | Literal["auto"] | None
    options: dict[str, Any]
    """Beside these two, those that the configuration sets."""
    curve: str
    """Of score against tokens per forward, of which it is a point."""
    kind: str
    default: Measure
    published: Measure | None
    """With GenerationConfig.reference(); only for the strategies that the published implementation has."""
    steps_saved: int | None
    """Steps of the published behaviour that the default one does without, on the same prompts."""
    beside: Comparison | None
    """On the same prompts, with the nearest in speed of the control's configurations; None for these themselves, and
    where the control was not measured or nothing is scored."""


def rows_from_outcomes(items: Sequence[EvalItem], outcomes: Outcomes) -> tuple[Row, ...]:
    """A row for every kind and variant; `outcomes` has one for each of `items`, by variant and published."""
    kinds = sorted({item.kind for item in items}, key=lambda kind: (kind != SCORED_KIND, kind))
    return tuple(row for kind in kinds for row in _rows_of_kind(kind, outcomes_of_kind(items, outcomes, kind)))


def outcomes_of_kind(items: Sequence[EvalItem], outcomes: Outcomes, kind: str) -> Outcomes:
    """Those of the prompts of one kind."""
    chosen = [i for i, item in enumerate(items) if item.kind == kind]
    return {key: [found[i] for i in chosen] for key, found in outcomes.items()}


def measure_from_outcomes(outcomes: Sequence[Outcome]) -> Measure:
    """The sums and ratios over the prompts of one kind."""
    steps, tokens = [each.steps for each in outcomes], [each.tokens for each in outcomes]
    window_tokens, seconds = sum(each.window_tokens for each in outcomes), [each.seconds for each in outcomes]
    verdicts = [each.right for each in outcomes if each.right is not None]
    limits = [each.limit for each in outcomes if each.limit is not None]
    return Measure(
        prompts=len(outcomes),
        score=score_from_count(sum(verdicts), len(outcomes)) if len(verdicts) == len(outcomes) else None,
        steps=sum(steps),
        tokens=sum(tokens),
        window_tokens=window_tokens,
        tokens_per_forward=tokens_per_forward(outcomes),
        tokens_per_forward_interval=interval_of_ratio(tokens, steps),
        window_tokens_per_forward=window_tokens / sum(steps),
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
