"""Paired comparison of two configurations on the same prompts, more sensitive than comparing two intervals."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lopa.bench.quality.outcome import DecodeOutcome

CONTROL = "d2f"
"""Baseline curve. Most faster published methods are no better than the baseline with a lower threshold."""


@dataclass(frozen=True)
class Comparison:
    """Comparison of a configuration with a baseline configuration."""

    control: str
    """Name of the baseline configuration."""
    gained: int
    """Prompts that only this configuration answers correctly."""
    lost: int
    """Prompts that only the baseline answers correctly."""
    p: float
    """P-value of the two-sided sign test for one comparison. On average, one of twenty comparisons without a real
    difference is below 0.05.
    """


def comparison_with_nearest(
    outcomes: Sequence[DecodeOutcome], controls: Mapping[str, Sequence[DecodeOutcome]]
) -> Comparison | None:
    """Return the comparison with the configuration of `controls` that is nearest in tokens per forward.

    Return None if there are no controls or the answers are not scored.
    """
    if not controls or any(each.right is None for each in outcomes):
        return None
    speed = tokens_per_forward(outcomes)
    name = min(controls, key=lambda control: abs(tokens_per_forward(controls[control]) - speed))
    pairs = [(own.right, other.right) for own, other in zip(outcomes, controls[name], strict=True)]
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    return Comparison(name, gained, lost, sign_test(gained, lost))


def tokens_per_forward(outcomes: Sequence[DecodeOutcome]) -> float:
    """Return all tokens divided by all steps."""
    return sum(each.tokens for each in outcomes) / sum(each.steps for each in outcomes)


def sign_test(more: int, fewer: int) -> float:
    """Return the two-sided p-value of the sign test: the probability of a split at least this uneven by chance."""
    coins = more + fewer
    tail = sum(math.comb(coins, k) for k in range(min(more, fewer) + 1))
    # Both operands stay integers, because with more than a thousand pairs they do not fit into a float.
    share: float = tail / 2**coins
    return min(1.0, 2 * share)
