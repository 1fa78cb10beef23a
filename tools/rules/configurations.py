"""The compared configurations: LoPA, three rules beside it, numbers of branches and thresholds."""

from dataclasses import dataclass
from typing import Any

BRANCHES = (1, 2, 4, 8)
THRESHOLDS = (0.95, 0.9, 0.8)


@dataclass(frozen=True)
class Rule:
    """A strategy with options that all its configurations share."""

    name: str
    strategy: str
    options: tuple[tuple[str, Any], ...] = ()


LOPA = Rule("LoPA", "lopa")
INFO_GAIN_SCORE = Rule("Info-Gain score", "info_gain")
RULES = (
    Rule("first masked", "lopa", (("unmask_first_masked", True),)),
    INFO_GAIN_SCORE,
    Rule("consistency (CCD)", "consistency"),
)
"""Rules that are compared with LoPA."""


@dataclass(frozen=True)
class RuleConfig:
    """A rule with a number of branches and a skip_threshold."""

    rule: Rule
    branches: int
    threshold: float

    @property
    def key(self) -> str:
        """Name of the configuration in the file of outcomes."""
        return f"{self.rule.name}, {self.branches}, {self.threshold:g}"

    @property
    def options(self) -> dict[str, Any]:
        """Decoding options by name."""
        own = dict(self.rule.options)
        return {"strategy": self.rule.strategy, "branches": self.branches, "skip_threshold": self.threshold, **own}


def configs_of_rule(rule: Rule) -> tuple[RuleConfig, ...]:
    """Return the configurations of `rule`. With one branch the Info-Gain score chooses nothing, so they are LoPA's."""
    return tuple(
        RuleConfig(LOPA if rule is INFO_GAIN_SCORE and branches == 1 else rule, branches, threshold)
        for branches in BRANCHES
        for threshold in THRESHOLDS
    )


CONSISTENCY_ALONE = RuleConfig(RULES[-1], 1, 1.0)
"""CCD without a threshold, as published."""
ALL_CONFIGS = tuple(
    dict.fromkeys([*(config for rule in (LOPA, *RULES) for config in configs_of_rule(rule)), CONSISTENCY_ALONE])
)
