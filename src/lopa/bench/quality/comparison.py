"""Two configurations beside each other on the same prompts, which says more than two intervals. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lopa.bench.quality.outcome import Outcome

CONTROL = "d2f"
"""The curve that others are held against: most of what is published as faster is no better than its threshold moved."""


@dataclass(frozen=True)
class Comparison:
    """A configuration beside one of the control's."""

    control: str
    """Its name."""
    gained: int
    """Prompts that this one alone has right."""
    lost: int
    """Prompts that the control alone has right."""
    p: float
    """Of so uneven a split by chance (sign test, two-sided), for one comparison: of twenty that mean nothing, one is
    below 0.05."""


def comparison_with_nearest(
    outcomes: Sequence[Outcome], controls: Mapping[str, Sequence[Outcome]]
) -> Comparison | None:
    """With the one of `controls`, by name, that is nearest in tokens per forward; None where nothing is scored."""
    if not controls or any(each.right is None for each in outcomes):
        return None
    speed = tokens_per_forward(outcomes)
    name = min(controls, key=lambda control: abs(tokens_per_forward(controls[control]) - speed))
    pairs = [(own.right, other.right) for own, other in zip(outcomes, controls[name], strict=True)]
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    return Comparison(name, gained, lost, sign_test(gained, lost))


def tokens_per_forward(outcomes: Sequence[Outcome]) -> float:
    """All tokens in all steps."""
    return sum(each.tokens for each in outcomes) / sum(each.steps for each in outcomes)


def sign_test(more: int, fewer: int) -> float:
    """Two-sided probability of so uneven a split, or a more uneven one, of as many fair coins."""
    coins = more + fewer
    tail = sum(math.comb(coins, k) for k in range(min(more, fewer) + 1))
    # Divided as whole numbers: of more than a thousand coins neither is a float.
    share: float = tail / 2**coins
    return min(1.0, 2 * share)
