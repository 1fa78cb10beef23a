"""What each strategy means for the options, in one table; lopa.runtime.strategy has the rules of the same names."""

from collections.abc import Mapping
from dataclasses import dataclass

from lopa.runtime.generation_config.words import Strategy


@dataclass(frozen=True, slots=True)
class Traits:
    """What the options and the blocks have to know of a strategy."""

    pipelined: bool = False
    """Whether it may decide several blocks at a time; others decide them one by one."""
    looks_ahead: bool = False
    """Whether it may verify lookahead branches beside the anchor."""
    branches: int | None = 1
    """Where nobody says how many; None: the device does (runtime/branch_choice.py)."""
    own: frozenset[str] = frozenset()
    """Options that it has and not every other."""


TRAITS: Mapping[Strategy, Traits] = {
    "lopa": Traits(pipelined=True, looks_ahead=True, branches=None),
    "d2f": Traits(pipelined=True),
    "threshold": Traits(),
    "vanilla": Traits(),
    "sequential": Traits(),
}
PIPELINED = tuple(name for name, traits in TRAITS.items() if traits.pipelined)
"""Strategies that may decide several blocks at a time."""


def strategies_with(option: str) -> tuple[Strategy, ...]:
    """Those that have an option of their own."""
    return tuple(name for name, traits in TRAITS.items() if option in traits.own)


OWN_OPTIONS = tuple(sorted({option for traits in TRAITS.values() for option in traits.own}))
"""Options that not every strategy has; None where they are not given."""
