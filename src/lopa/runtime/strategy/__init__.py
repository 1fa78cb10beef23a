"""Strategies: which positions a step unmasks. A strategy is one record of stages, traits and options."""

from lopa.runtime.options.option import Option as Option
from lopa.runtime.strategy.installed import register_strategy as register_strategy
from lopa.runtime.strategy.installed import strategy_from_name as strategy_from_name
from lopa.runtime.strategy.installed import strategy_names as strategy_names
from lopa.runtime.strategy.strategies import STRATEGIES as STRATEGIES
from lopa.runtime.strategy.strategy import BlockView as BlockView
from lopa.runtime.strategy.strategy import BranchView as BranchView
from lopa.runtime.strategy.strategy import Candidates as Candidates
from lopa.runtime.strategy.strategy import EditView as EditView
from lopa.runtime.strategy.strategy import Memory as Memory
from lopa.runtime.strategy.strategy import RemaskView as RemaskView
from lopa.runtime.strategy.strategy import RoundView as RoundView
from lopa.runtime.strategy.strategy import Strategy as Strategy
from lopa.runtime.strategy.strategy import match_positions as match_positions
