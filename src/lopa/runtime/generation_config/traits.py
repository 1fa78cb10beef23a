"""What each strategy means for the options, in one table; lopa.runtime.strategy has the rules of the same names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

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
    block_steps: bool = False
    """Whether the option of this name says how many positions a step decides at least."""
    whole: bool = False
    """Whether all of the answer is one block and no row is kept, whatever the options say."""
    filters_greedy: bool = False
    """Whether top_k and top_p also cut the distributions of which the best token is taken."""
    has_next_step: bool = True
    """Whether what it makes of a branch follows from the answers to this branch alone, which `lossless` needs."""
    doubt_threshold: float | None = None
    """take_back_threshold where nobody gives it; None: what is decided stays."""
    own: frozenset[str] = frozenset()
    """Options that it has and not every other."""


_TAKE_BACK = frozenset({"take_back_threshold", "take_back_limit"})
_FRONTIER = frozenset({"decide_frontier"})

TRAITS: Mapping[Strategy, Traits] = {
    "lopa": Traits(pipelined=True, looks_ahead=True, branches=None, has_next_step=False, own=_FRONTIER | _TAKE_BACK),
    "d2f": Traits(pipelined=True, own=_FRONTIER | _TAKE_BACK),
    "threshold": Traits(block_steps=True, own=_FRONTIER | _TAKE_BACK),
    "vanilla": Traits(block_steps=True),
    "sequential": Traits(block_steps=True),
    "eb": Traits(pipelined=True, looks_ahead=True, own=frozenset({"gamma"}) | _FRONTIER | _TAKE_BACK),
    "wino": Traits(has_next_step=False, doubt_threshold=0.9, own=_TAKE_BACK),
    "dream": Traits(whole=True, filters_greedy=True, own=frozenset({"alg", "steps", "alg_temp"})),
    "top_n": Traits(own=frozenset({"per_step"}) | _FRONTIER),
    "factor": Traits(pipelined=True, own=frozenset({"factor"}) | _FRONTIER),
    "klass": Traits(pipelined=True, own=frozenset({"kl_threshold"}) | _FRONTIER),
    "credit": Traits(pipelined=True, own=_FRONTIER),
    "local_leap": Traits(pipelined=True, own=_FRONTIER),
}


def left_out_for(strategy: Any) -> dict[str, Any]:
    """What a model's own options become where `strategy` has no use for them; nothing for one that is not known."""
    traits = TRAITS.get(cast(Strategy, strategy)) if isinstance(strategy, str) else None
    if traits is None:
        return {}
    own_cache = traits.pipelined or traits.whole or traits.doubt_threshold is not None
    cache = {"cache": "blocks"} if own_cache else {}
    parts = {"sub_block": None} if traits.whole else {}
    steps = {} if traits.block_steps else {"block_steps": None}
    return {**cache, **parts, **steps}


def strategies_with(option: str) -> tuple[Strategy, ...]:
    """Those that have an option of their own."""
    return tuple(name for name, traits in TRAITS.items() if option in traits.own)


OWN_OPTIONS = tuple(sorted({option for traits in TRAITS.values() for option in traits.own}))
"""Options that not every strategy has; None or False where they are not given."""
