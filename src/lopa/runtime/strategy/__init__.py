"""Strategies: which positions a step unmasks. A strategy is one record of stages, traits and options."""

from lopa.runtime.strategy.strategies import STRATEGIES, register_strategy, strategy_from_name, strategy_names
from lopa.runtime.strategy.strategy import OwnOption, Strategy
from lopa.runtime.strategy.views import (
    BlockView,
    BranchView,
    Candidates,
    EditView,
    Memory,
    RemaskView,
    RoundView,
    match_positions,
)

__all__ = [
    "STRATEGIES",
    "BlockView",
    "BranchView",
    "Candidates",
    "EditView",
    "Memory",
    "OwnOption",
    "RemaskView",
    "RoundView",
    "Strategy",
    "match_positions",
    "register_strategy",
    "strategy_from_name",
    "strategy_names",
]
