"""A speculative round: exact speculative decoding, which accepts drafts of the strategy's next states (FreeDave, arXiv
2510.00294).

Beside the state that a strategy has reached, a forward computes drafts of its next states, a branch each. Where the
strategy, by the answers to one state, arrives at another that was computed too, it goes on from there
(docs/concepts/decoding.md, "Exact speculative decoding").
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lopa.runtime.decoding.round import Fills, Scores, strategy_step
from lopa.runtime.plan import DecodingPlan
from lopa.runtime.state.branch import Branch, stop_reason
from lopa.runtime.state.context import Context
from lopa.runtime.state.windows import Reach, reach_of


@dataclass(frozen=True, slots=True)
class Verified:
    """The states that the strategy went through in a round."""

    states: tuple[Branch, ...]
    """The state behind each of its steps: the last is the next anchor."""
    fills: tuple[Fills, ...]
    """What each of them unmasked."""
    numbers: tuple[int, ...]
    """Index of the branch whose answers each of them used."""


def verify(branches: tuple[Branch, ...], scores: Scores, steps: int, context: Context) -> Verified:
    """Return how far the strategy gets with `branches`, drafts and then the anchor, after its first `steps` steps."""
    chain = (branches[-1], *branches[:-1])
    states, fills, numbers = list[Branch](), list[Fills](), list[int]()
    at: int | None = 0
    while at is not None:
        number = at - 1 if at else len(branches) - 1
        before = states[-1] if states else branches[-1]
        state, each = strategy_step(scores, before, number, steps + len(states) + 1, context)
        states.append(state)
        fills.append(each)
        numbers.append(number)
        at = accepted_draft([_agrees(draft, state, context.plan) for draft in chain], at)
    return Verified(tuple(states), tuple(fills), tuple(numbers))


def accepted_draft(agree: Sequence[bool], at: int) -> int | None:
    """Return the draft behind number `at` that is accepted, of those that `agree` with the state reached; None: none.

    Of several, which an inexact test allows, it is the last.
    """
    return next((number for number in range(len(agree) - 1, at, -1) if agree[number]), None)


def drafts(verified: Verified, scores: Scores, steps: int, context: Context) -> tuple[Branch, ...]:
    """Return what the strategy would reach next if the model said the same again: branches beside the next anchor.

    The strategy made `steps` steps until there, those of the round included. A step that unmasks nothing, or leaves
    nothing to unmask, ends the chain.
    """
    found = list[Branch]()
    anchor = state = verified.states[-1]
    while len(found) < context.plan.lookaheads:
        steps += 1
        state, fills = strategy_step(scores, state, verified.numbers[-1], steps, context)
        if not len(fills) or stop_reason(state, context.ends) is not None or not _fits(state, anchor, context.plan):
            break
        found.append(state)
    return tuple(found)


def _fits(draft: Branch, anchor: Branch, plan: DecodingPlan) -> bool:
    """Return whether a round of `anchor` asks `draft` what it would be asked alone: the same rows on the same prefix.

    Not where either commits rows. A round keeps the anchor's alone, and with full windows rows that are kept depend on
    what stands behind them.
    """
    alone = reach_of(draft, draft, plan)
    return alone.commit == 0 and _same(alone, reach_of(draft, anchor, plan))


def _agrees(draft: Branch, state: Branch, plan: DecodingPlan) -> bool:
    """Return whether the answers to `draft` are those to `state`: both ask about the same positions of the same
    rows."""
    if draft.blocks[-1].end != state.blocks[-1].end or not (
        np.array_equal(draft.tokens, state.tokens) and np.array_equal(draft.unmasked, state.unmasked)
    ):
        return False
    return _same(reach_of(draft, draft, plan), reach_of(state, state, plan))


def _same(one: Reach, other: Reach) -> bool:
    return (
        one.commit == other.commit
        and np.array_equal(one.cached, other.cached)
        and np.array_equal(one.order, other.order)
    )
