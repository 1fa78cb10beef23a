"""When a forward is asked the same of two branches: of a guess, and of the state that a rule has reached. Pure."""

import numpy as np

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.reach import Reach, reach_from_config


def asked_beside(guess: Branch, anchor: Branch, config: GenerationConfig) -> bool:
    """Whether `guess` is asked in a round of `anchor` what it would be asked alone: the same rows on the same prefix.

    Not where either commits rows. A round keeps the anchor's alone, and with full windows rows that are kept depend on
    what stands behind them.
    """
    reach = reach_from_config(config)
    alone = reach(guess, guess, config)
    return alone.commit == 0 and _same(alone, reach(guess, anchor, config))


def same_question(guess: Branch, state: Branch, config: GenerationConfig) -> bool:
    """Whether the answers to `guess` are those to `state`: both ask about the same positions of the same rows."""
    if guess.blocks[-1].end != state.blocks[-1].end or not (
        np.array_equal(guess.tokens, state.tokens) and np.array_equal(guess.decided, state.decided)
    ):
        return False
    reach = reach_from_config(config)
    return _same(reach(guess, guess, config), reach(state, state, config))


def _same(one: Reach, other: Reach) -> bool:
    return (
        one.commit == other.commit
        and np.array_equal(one.cached, other.cached)
        and np.array_equal(one.order, other.order)
    )
