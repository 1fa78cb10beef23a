"""A lossless round on one request: how far its rule goes, and which of its next states are guessed. Pure.

Knows a rule by what it makes of one state alone.
"""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Generic, TypeVar

from lopa.runtime.generation_config import GenerationConfig
from lopa.runtime.ladder.guesses import ladder
from lopa.runtime.ladder.question import asked_beside, same_question
from lopa.runtime.ladder.walk import walk
from lopa.runtime.sequence.branches import Branch
from lopa.runtime.sequence.ends import end_of

Decided = TypeVar("Decided", bound=Sized)
StateAfter = Callable[[Branch, int, int], tuple[Branch, Decided]]
"""The rule: of a state, by the answers to the branch of a round with this index, in the step with this number. What it
makes of the state, and what it decides."""


@dataclass(frozen=True, slots=True)
class Advance(Generic[Decided]):
    """How far the rule went in a round."""

    row: int
    """Of the last branch whose answers were used."""
    states: tuple[Branch, ...]
    """Behind each of the rule's steps: the last is the next anchor."""
    decided: tuple[Decided, ...]
    """In each of them."""
    rows: tuple[int, ...]
    """Index of the branch whose answers each of them used; `row` is the last."""


def advance_of(
    branches: tuple[Branch, ...], state_after: StateAfter[Decided], steps: int, config: GenerationConfig
) -> Advance[Decided]:
    """Of the `branches` of a round, guesses and then the anchor, behind so many `steps` of the rule."""
    states, decided, rows = list[Branch](), list[Decided](), list[int]()
    anchor = len(branches) - 1

    def row_of(rung: int) -> int:
        return rung - 1 if rung else anchor

    def next_state(state: Branch, rung: int) -> Branch:
        after, each = state_after(state, row_of(rung), steps + len(states) + 1)
        states.append(after)
        decided.append(each)
        rows.append(row_of(rung))
        return after

    rung, _ = walk((branches[-1], *branches[:-1]), next_state, partial(same_question, config=config))
    return Advance(row_of(rung), tuple(states), tuple(decided), tuple(rows))


def guesses_behind(
    advance: Advance[Decided],
    state_after: StateAfter[Decided],
    steps: int,
    config: GenerationConfig,
    ends: tuple[int, ...],
) -> tuple[Branch, ...]:
    """What the rule would reach next if the model said the same again: branches beside the next anchor, that go on.

    `steps` of the rule were made until there, those of the advance included. A step that decides nothing, or leaves
    nothing to decide, ends the ladder.
    """
    anchor, numbers = advance.states[-1], count(steps + 1)

    def following(state: Branch) -> Branch | None:
        after, decided = state_after(state, advance.row, next(numbers))
        stuck = not len(decided) or end_of(after, ends) is not None
        return None if stuck or not asked_beside(after, anchor, config) else after

    _, *guesses = ladder(anchor, following, 1 + config.lookaheads)
    return tuple(guesses)
