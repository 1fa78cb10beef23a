"""Every strategy as a setting of the five stages: the table by which a name becomes a rule. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from lopa.runtime.generation_config import GenerationConfig, Strategy
from lopa.runtime.strategy.cut import (
    Cut,
    Least,
    all_of_them,
    seven_tenths,
    share_of_schedule,
    share_of_step,
    so_many,
    within_entropy_bound,
    within_factor,
)
from lopa.runtime.strategy.eligible import Eligible, every, settled
from lopa.runtime.strategy.rank import Rank, by_confidence, by_drawn_confidence, by_probability, left_to_right
from lopa.runtime.strategy.rescore import Rescore, as_said, on_schedule, with_credit, with_divergences
from lopa.runtime.strategy.take_back import TakeBack, doubted
from lopa.runtime.strategy.threshold import (
    Threshold,
    by_schedule,
    constant,
    if_the_best_is_sure,
    lower_near_anchors,
    never,
    none,
    reached,
)


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
    """None: what is decided stays. So it does where GenerationConfig.doubt_threshold is None."""
    overwrites_decided: bool = True
    """Whether it takes decided positions too where GenerationConfig.overwrites_decided says that rules do."""


RULES: Mapping[Strategy, Rule] = {
    "lopa": Rule(take_back=doubted),
    "d2f": Rule(take_back=doubted),
    "threshold": Rule(take_back=doubted),
    "vanilla": Rule(threshold=never),
    "sequential": Rule(threshold=never, rank=left_to_right, overwrites_decided=False),
    "eb": Rule(threshold=if_the_best_is_sure, cut=within_entropy_bound, take_back=doubted),
    "wino": Rule(rank=by_probability, cut=seven_tenths, take_back=doubted),
    "dream": Rule(rescore=on_schedule, threshold=by_schedule, rank=by_drawn_confidence, least=share_of_schedule),
    "top_n": Rule(threshold=never, least=so_many),
    "factor": Rule(threshold=none, rank=by_probability, cut=within_factor),
    "klass": Rule(rescore=with_divergences, eligible=settled, threshold=reached),
    "credit": Rule(rescore=with_credit),
    "local_leap": Rule(threshold=lower_near_anchors),
}
"""Where several have the same rule, lopa.runtime.generation_config.TRAITS tells them apart."""


def rule_from_config(config: GenerationConfig) -> Rule:
    """The rule that a config asks for."""
    return RULES[config.strategy]
