"""Strategies: which positions a step unmasks. A strategy is one record of stages, traits and options."""

from lopa.runtime.options.option import Option
from lopa.runtime.strategy.installed import register_strategy, strategy_from_name, strategy_names
from lopa.runtime.strategy.strategies import STRATEGIES
from lopa.runtime.strategy.strategy import (
    BlockView,
    BranchView,
    Candidates,
    EditView,
    Memory,
    RemaskView,
    RoundView,
    Strategy,
    match_positions,
)

__all__ = [
    "STRATEGIES",
    "BlockView",
    "BranchView",
    "Candidates",
    "EditView",
    "Memory",
    "Option",
    "RemaskView",
    "RoundView",
    "Strategy",
    "match_positions",
    "register_strategy",
    "strategy_from_name",
    "strategy_names",
]
