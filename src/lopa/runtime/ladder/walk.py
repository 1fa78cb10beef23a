"""How far a rule goes by the answers of one forward (FreeDave's verification, 2510.00294). Pure."""

from collections.abc import Callable, Sequence
from typing import TypeVar

State = TypeVar("State")


def walk(
    rungs: Sequence[State], next_state: Callable[[State, int], State], agree: Callable[[State, State], bool]
) -> tuple[int, State]:
    """The last rung whose answers were used, by its index, and the state that they lead to.

    The first of `rungs` is known, the others are guesses. `next_state` is the rule: of a state, by the answers of the
    rung with this index. `agree` says whether a guess and a state are the same; of several that do, which an inexact
    test allows, the last is taken.
    """
    at, state = 0, next_state(rungs[0], 0)
    while True:
        ahead = next((rung for rung in range(len(rungs) - 1, at, -1) if agree(rungs[rung], state)), None)
        if ahead is None:
            return at, state
        at, state = ahead, next_state(state, ahead)
