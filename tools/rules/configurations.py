"""The compared configurations: LoPA and other rules, with several numbers of branches and thresholds."""

from dataclasses import dataclass
from typing import Any

BRANCHES = (1, 2, 4, 8)
THRESHOLDS = (0.98, 0.95, 0.9, 0.8)


@dataclass(frozen=True)
class Rule:
    """A strategy with options that all its configurations share."""

    name: str
    strategy: str
    unmask_first_masked: bool = False
    own: tuple[tuple[str, Any], ...] = ()
    """Options of the strategy alone."""
    min_branches: int = 1
    """Smallest number of branches at which the rule differs from LoPA."""


LOPA = Rule("LoPA", "lopa")
RULES = (
    Rule("first masked", "lopa", unmask_first_masked=True),
    *(
        Rule(f"Info-Gain, cost {weight:g}", "info_gain", own=(("cost_weight", weight),), min_branches=2)
        for weight in (1.0, 0.1)
    ),
    *(Rule(f"consistency, {count}", "consistency", own=(("compared_positions", count),)) for count in (4, 16)),
)
"""Rules that are compared with LoPA. The cost of 1 and the 4 compared positions are the published values."""


@dataclass(frozen=True)
class RuleConfig:
    """A rule with a number of branches and a skip_threshold."""

    rule: Rule
    branches: int
    threshold: float

    @property
    def key(self) -> str:
        """Name of the configuration in the file of outcomes."""
        return f"{self.rule.name}, {self.branches} branches, {self.threshold:g}"

    @property
    def options(self) -> dict[str, Any]:
        """Decoding options by name."""
        return {
            "strategy": self.rule.strategy,
            "strategy_options": dict(self.rule.own),
            "branches": self.branches,
            "skip_threshold": self.threshold,
            "unmask_first_masked": self.rule.unmask_first_masked,
        }


def configs_of_rule(rule: Rule) -> tuple[RuleConfig, ...]:
    """Return the configurations of `rule`, one per number of branches and threshold.

    Below the rule's smallest number of branches they are LoPA's, so that every rule has equally many to choose from.
    """
    return tuple(
        RuleConfig(rule if branches >= rule.min_branches else LOPA, branches, threshold)
        for branches in BRANCHES
        for threshold in THRESHOLDS
    )


PROMISING = next(rule for rule in RULES if rule.name == "Info-Gain, cost 0.1")
"""The rule that new questions judge again: the only one whose interval of the score on the 200 lies above 0."""
ALONE = tuple(RuleConfig(rule, 1, 1.0) for rule in RULES if rule.strategy == "consistency")
"""CCD without a threshold, as published."""


def all_configs() -> tuple[RuleConfig, ...]:
    """Return all compared configurations, each once."""
    return tuple(dict.fromkeys([*(config for rule in (LOPA, *RULES) for config in configs_of_rule(rule)), *ALONE]))


def promising_configs() -> tuple[RuleConfig, ...]:
    """Return the configurations of PROMISING at the two middle thresholds, and LoPA's."""
    return tuple(
        RuleConfig(rule, branches, threshold)
        for rule in (LOPA, PROMISING)
        for branches in BRANCHES
        if branches >= PROMISING.min_branches
        for threshold in THRESHOLDS[1:-1]
    )
