"""States that a rule may reach next, guessed from answers that are at hand (FreeDave's drafts, 2510.00294). Pure."""

from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")


def ladder(known: State, following: Callable[[State], State | None], most: int) -> tuple[State, ...]:
    """The `known` state and guesses behind it, each `following` the one before; `most` in all at most, at least one.

    `following` is the rule itself, by answers to a state before: where it would go if the model said the same again.
    None ends the ladder.
    """
    rungs = [known]
    while len(rungs) < most and (guess := following(rungs[-1])) is not None:
        rungs.append(guess)
    return tuple(rungs)
