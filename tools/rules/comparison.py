"""Paired comparisons of configurations on the same questions, and choices on other questions than the reported ones."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lopa.bench.quality.intervals import Interval, interval_from_resamples, resampled_ratios
from lopa.bench.quality.paired_comparison import sign_test
from tools.rules.configurations import RuleConfig
from tools.rules.outcomes import Outcomes, RuleOutcome

FOLDS = 10
"""Parts of the questions. The configuration that is judged on a part is chosen on the other parts."""
Cost = Callable[[RuleOutcome], float]
"""Cost of a decode: forwards or CPU seconds."""


def forwards(outcome: RuleOutcome) -> float:
    """Return the number of forwards."""
    return outcome.steps


def cpu_seconds(outcome: RuleOutcome) -> float:
    """Return the CPU seconds."""
    return outcome.cpu


@dataclass(frozen=True)
class RuleComparison:
    """Comparison of a rule with a control on the same questions. Intervals are 95 % intervals over questions."""

    questions: int
    right: int
    """Questions that the rule answers correctly."""
    gained: int
    """Questions that only the rule answers correctly."""
    lost: int
    """Questions that only the control answers correctly."""
    p: float
    """P-value of the exact McNemar test."""
    points: Interval
    """Interval of the difference in score, in percentage points."""
    per_forward: tuple[float, Interval]
    """Tokens per forward, relative to the control."""
    per_second: tuple[float, Interval]
    """Tokens per CPU second, relative to the control."""


def compare(own: Sequence[RuleOutcome], control: Sequence[RuleOutcome]) -> RuleComparison:
    """Return the comparison of two sequences of outcomes of the same questions, in the same order."""
    pairs = [(a.right, b.right) for a, b in zip(own, control, strict=True)]
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    gains = [100.0 * (a - b) for a, b in pairs]
    ones = [1.0] * len(pairs)
    points = interval_from_resamples(sum(gains) / len(gains), resampled_ratios(gains, ones))
    return RuleComparison(
        questions=len(pairs),
        right=sum(a for a, _ in pairs),
        gained=gained,
        lost=lost,
        p=sign_test(gained, lost),
        points=points,
        per_forward=_speed_ratio(own, control, forwards),
        per_second=_speed_ratio(own, control, cpu_seconds),
    )


def speed(outcomes: Sequence[RuleOutcome], cost: Cost) -> float:
    """Return all tokens divided by the sum of `cost`."""
    return sum(each.tokens for each in outcomes) / sum(map(cost, outcomes))


def chosen_config(
    outcomes: Outcomes, configs: Sequence[RuleConfig], control: RuleConfig, questions: Sequence[int], cost: Cost
) -> RuleConfig:
    """Return the fastest of `configs` with at least as many correct answers to `questions` as `control`.

    Return the one with the most correct answers if all have fewer.
    """
    rows = {config: [outcomes[config.key][each] for each in questions] for config in configs}
    needed = sum(outcomes[control.key][each].right for each in questions)
    right = {config: sum(each.right for each in found) for config, found in rows.items()}
    able = [config for config in configs if right[config] >= needed]
    if not able:
        return max(configs, key=lambda config: right[config])
    return max(able, key=lambda config: speed(rows[config], cost))


def judged_outcomes(
    outcomes: Outcomes, configs: Sequence[RuleConfig], control: RuleConfig, questions: Sequence[int], cost: Cost
) -> tuple[list[RuleOutcome], list[RuleConfig]]:
    """Return one outcome per question, in the order of `questions`, and the configuration chosen for each part.

    No question has a part in the choice of the configuration that answers it.
    """
    shuffled = random.Random(0).sample(list(questions), len(questions))
    found: dict[int, RuleOutcome] = {}
    choices = []
    for fold in range(FOLDS):
        judged = shuffled[fold::FOLDS]
        others = [each for each in shuffled if each not in set(judged)]
        choices.append(chosen_config(outcomes, configs, control, others, cost))
        found.update({each: outcomes[choices[-1].key][each] for each in judged})
    return [found[each] for each in questions], choices


def pooled(outcomes: Outcomes, configs: Sequence[RuleConfig], questions: Sequence[int]) -> list[RuleOutcome]:
    """Return one outcome per question with the sums of tokens, forwards and seconds over `configs`; none is right."""
    found = []
    for question in questions:
        row = [outcomes[config.key][question] for config in configs]
        sums = sum(each.tokens for each in row), sum(each.steps for each in row), sum(each.cpu for each in row)
        found.append(RuleOutcome(question, "all", False, *sums))
    return found


def pooled_points(
    outcomes: Outcomes, own: Sequence[RuleConfig], control: Sequence[RuleConfig], questions: Sequence[int]
) -> tuple[float, Interval]:
    """Return the mean difference in score of pairs of configurations, in percentage points, and its 95 % interval.

    The bootstrap draws questions, so that the answers of several configurations to a question stay together.
    """
    gains = [
        100.0
        * sum(outcomes[a.key][each].right - outcomes[b.key][each].right for a, b in zip(own, control, strict=True))
        / len(own)
        for each in questions
    ]
    mean = sum(gains) / len(gains)
    return mean, interval_from_resamples(mean, resampled_ratios(gains, [1.0] * len(gains)))


def _speed_ratio(own: Sequence[RuleOutcome], control: Sequence[RuleOutcome], cost: Cost) -> tuple[float, Interval]:
    ratio = speed(own, cost) / speed(control, cost)
    above, below = (
        resampled_ratios([each.tokens for each in found], [cost(each) for each in found]) for found in (own, control)
    )
    return ratio, interval_from_resamples(ratio, above / below)
