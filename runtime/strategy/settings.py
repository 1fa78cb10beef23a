"""Every strategy as a setting of the five stages: the table by which a name becomes a rule. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from lopa.runtime.generation_config import GenerationConfig, Strategy
from lopa.runtime.strategy.cut import Cut, Least, all_of_them, share_of_step
from lopa.runtime.strategy.eligible import Eligible, every
from lopa.runtime.strategy.rank import Rank, by_confidence, left_to_right
from lopa.runtime.strategy.rescore import Rescore, as_said
from lopa.runtime.strategy.take_back import TakeBack
from lopa.runtime.strategy.threshold import Threshold, constant, never


@dataclass(frozen=True, slots=True)
class Rule:
    """What a strategy does in each stage."""

    rescore: Rescore = as_said
    eligible: Eligible = every
    threshold: Threshold = constant
    rank: Rank = by_confidence
    cut: Cut = all_of_them
    least: Least = share_of_step
    take_back: TakeBack | None = None
    """None: what is decided stays, and no row is computed to judge it."""
    overwrites_decided: bool = True
    """Whether it takes decided positions too where GenerationConfig.overwrites_decided says that rules do."""


RULES: Mapping[Strategy, Rule] = {
    "lopa": Rule(),
    "d2f": Rule(),
    "threshold": Rule(),
    "vanilla": Rule(threshold=never),
    "sequential": Rule(threshold=never, rank=left_to_right, overwrites_decided=False),
}
"""Where several have the same rule, lopa.runtime.generation_config.TRAITS tells them apart."""


def rule_from_config(config: GenerationConfig) -> Rule:
    """The rule that a config asks for."""
    return RULES[config.strategy]
