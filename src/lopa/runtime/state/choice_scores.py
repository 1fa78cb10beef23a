"""The probabilities of a request's choices (docs/concepts/decoding.md, "Scores of choices")."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class EncodedChoice:
    """One of the answers that a request may have."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class ChoiceScore:
    """The probability of one choice. Logarithms are natural, and probabilities are at the request's temperature."""

    text: str
    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    """Log-probability of each token behind the prompt and the choice's earlier tokens, with masks behind it."""
    logprob: float
    """Sum of `token_logprobs`: the log-probability that unmasking from left to right writes this choice first."""
    probability: float
    """Probability of this choice divided by the sum over all choices."""


@dataclass(frozen=True)
class ChoiceScores:
    """The probabilities of all choices of a request."""

    choices: tuple[ChoiceScore, ...]
    """Scores in the order of the request's choices."""
    label_mass: float | None
    """Sum of the choices' probabilities before they were divided by it, or None if one choice begins with another.

    The rest of the probability belongs to answers that begin in none of these ways.
    """
    canvas: int
    """Number of positions behind the prompt: the choice's earlier tokens, then masks."""

    @property
    def best(self) -> ChoiceScore:
        """The most probable choice, the first one of equals."""
        return max(self.choices, key=lambda choice: choice.logprob)


def scores_from_logprobs(
    choices: Sequence[EncodedChoice], token_logprobs: Sequence[tuple[float, ...]], canvas: int
) -> ChoiceScores:
    """Return the scores of `choices`, at least one, from the log-probabilities of their tokens."""
    logprobs = [math.fsum(each) for each in token_logprobs]
    largest = max(logprobs)
    weights = [math.exp(each - largest) if each > -math.inf else 0.0 for each in logprobs]
    total = math.fsum(weights)
    scores = tuple(
        ChoiceScore(choice.text, choice.token_ids, tokens, logprob, weight / total if total else 0.0)
        for choice, tokens, logprob, weight in zip(choices, token_logprobs, logprobs, weights, strict=True)
    )
    mass = math.fsum(map(math.exp, logprobs)) if _are_exclusive(choices) else None
    return ChoiceScores(scores, mass, canvas)


def _are_exclusive(choices: Sequence[EncodedChoice]) -> bool:
    """Return True if no choice begins with another. A choice would sort directly before those that begin with it."""
    in_order = sorted(choice.token_ids for choice in choices)
    return all(after[: len(before)] != before for before, after in pairwise(in_order))
