"""Arithmetic problems whose solution lacks a step, generated from a seed.

A problem is like those of the embedded evaluation set. Each step of its solution begins with the result of the step
before. The result of the missing step therefore appears in the text behind it. There are two kinds of problems. In the
first, the question gives all numbers, so the text before the hole determines the step. In the second, the question does
not give the missing step's number ("finds more apples"). Only the text behind the hole determines it.
"""

import random
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_NAMES = (
    "Anna",
    "Ben",
    "Carl",
    "Dan",
    "Ella",
    "Finn",
    "Hugo",
    "Ivy",
    "Jack",
    "Kate",
    "Lena",
    "Max",
    "Mia",
    "Nina",
    "Noah",
    "Omar",
    "Paul",
    "Rosa",
    "Sam",
    "Tom",
    "Zoe",
)
_ITEMS = (
    "apples",
    "balloons",
    "beads",
    "books",
    "buttons",
    "cards",
    "coins",
    "cookies",
    "crayons",
    "eggs",
    "flowers",
    "marbles",
    "shells",
    "toys",
)
_STARTS = ("{a} has {n} {items}.", "There are {n} {items} in {a}'s room.", "{a} starts with {n} {items}.")
_OPENINGS = (" At the beginning there are {n} {items}.", " First, {a} has {n} {items}.")
_GIVEN = {
    "+": ("{a} buys {k} more {items}.", "{b} gives {a} {k} more.", "Then {a} finds {k} {items}."),
    "-": ("{a} gives {k} {items} to {b}.", "Then {a} loses {k} of them.", "{a} sells {k} {items} to {b}."),
}
_OPEN = {
    "+": ("{a} buys more {items}.", "{b} gives {a} more.", "Then {a} finds {items}."),
    "-": ("{a} gives {items} to {b}.", "Then {a} loses a few of them.", "{a} sells {items} to {b}."),
}
_FACTORS = {("*", 2): "{a} doubles the number of {items}.", ("*", 3): "{a} triples the number of {items}."}
_HALF = "{a} gives half of the {items} to {b}."
_STEPS = {
    "+": (" Adding {k} gives {equation}.", " Then {a} has {equation} {items}."),
    "-": (" Taking away {k} gives {equation}.", " Now {a} has {equation} {items}."),
    "*": (" Multiplying by {k} gives {equation}.",),
    "/": (" Half of them are gone, so there are {equation} {items} left.",),
}
_QUESTIONS = ("How many {items} does {a} have now?", "How many {items} are there in the end?")
_ENDINGS = (" The answer is {n}.\n#### {n}", " The final number is {n}.\n#### {n}")
_NUM_STEPS = (3, 4)
_MAX_NUMBER = 60
_EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
_HELD_OUT_SHARE = 10
"""One question in this many is never trained on."""


@dataclass(frozen=True)
class Problem:
    """A question and its solution, of which the step `missing` is to be filled."""

    question: str
    """Ends with "Answer:"."""
    opening: str
    steps: tuple[str, ...]
    """Sentences, each with an equation. They begin with a space and end with a period."""
    ending: str
    missing: int
    """Index of a step that is not the last."""
    is_given: bool
    """True if the question gives the number of the missing step."""

    @property
    def before(self) -> str:
        """Text before the missing step."""
        return self.question + self.opening + "".join(self.steps[: self.missing])

    @property
    def after(self) -> str:
        """Text behind the missing step."""
        return "".join(self.steps[self.missing + 1 :]) + self.ending

    @property
    def is_held_out(self) -> bool:
        """Return whether the question is kept for measurements. This depends on its text only."""
        return zlib.crc32(self.question.encode()) % _HELD_OUT_SHARE == 0

    def is_filled_by(self, text: str) -> bool:
        """Return whether `text` is one sentence with the missing step's equation and no other, in any words."""
        return _is_sentence(text) and equations_of(text) == equations_of(self.steps[self.missing])

    def has_result_in(self, text: str) -> bool:
        """Return whether `text` is one sentence with one equation, whose result is the missing step's."""
        results = [equation[-1] for equation in equations_of(text)]
        return _is_sentence(text) and results == [equations_of(self.steps[self.missing])[0][-1]]


def _is_sentence(text: str) -> bool:
    return text.strip().endswith(".")


def equations_of(text: str) -> list[tuple[str, ...]]:
    """Return (number, operator, number, result) of each equation in `text`."""
    return [match.groups() for match in _EQUATION.finditer(text)]


def first_sentence(text: str) -> str:
    """Return `text` up to its first period, inclusive. Without a period, return all of it."""
    head, period, _ = text.partition(".")
    return head + period


def held_out_problems(count: int, seed: int, *, is_given: bool) -> list[Problem]:
    """Return `count` different problems of a kind that are never trained on."""
    found: dict[str, Problem] = {}
    for problem in problems(seed):
        if problem.is_held_out and problem.is_given == is_given:
            found.setdefault(problem.question, problem)
        if len(found) == count:
            break
    return list(found.values())


def problems(seed: int) -> Iterator[Problem]:
    """Yield problems without end, held-out ones included."""
    rng = random.Random(seed)
    while True:
        problem = _problem(rng)
        if problem is not None:
            yield problem


def _problem(rng: random.Random) -> Problem | None:
    """Return a problem, or None if the drawn numbers give a result outside 1 to _MAX_NUMBER."""
    first, second = rng.sample(_NAMES, 2)
    words = {"a": first, "b": second, "items": rng.choice(_ITEMS)}
    number = rng.randint(4, 30)
    question = ["Question: " + rng.choice(_STARTS).format(n=number, **words)]
    opening = rng.choice(_OPENINGS).format(n=number, **words)
    count = rng.choice(_NUM_STEPS)
    missing, is_given = rng.randrange(count - 1), rng.random() < 0.5
    steps = []
    for index in range(count):
        is_open = index == missing and not is_given
        sentence, operator, operand = _event(rng, is_open=is_open)
        result = {"+": number + operand, "-": number - operand, "*": number * operand, "/": number // operand}[operator]
        if not 0 < result <= _MAX_NUMBER or (operator == "/" and number % operand):
            return None
        equation = f"{number} {operator} {operand} = {result}"
        question.append(sentence.format(k=operand, **words))
        steps.append(rng.choice(_STEPS[operator]).format(k=operand, equation=equation, **words))
        number = result
    question.append(rng.choice(_QUESTIONS).format(**words) + "\nAnswer:")
    ending = rng.choice(_ENDINGS).format(n=number)
    return Problem(" ".join(question), opening, tuple(steps), ending, missing, is_given)


def _event(rng: random.Random, *, is_open: bool) -> tuple[str, str, int]:
    """Return the sentence of a question, the operator and the operand. An open event hides its number."""
    if not is_open and rng.random() < 0.2:
        if rng.random() < 0.4:
            return _HALF, "/", 2
        (operator, factor), sentence = rng.choice(list(_FACTORS.items()))
        return sentence, operator, factor
    operator = rng.choice("+-")
    return rng.choice((_OPEN if is_open else _GIVEN)[operator]), operator, rng.randint(2, 9)
