"""New questions for a second look: the questions of an evaluation file with other numbers and their new answers.

An answer of the embedded model's evaluation file shows its calculation as equations such as "5 + 3 = 8". Each operand
is a number of the question, an earlier result, or a constant such as the 2 of "doubles". Only questions in which this
is unambiguous are used.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lopa.bench.eval_set import EvalItem
from lopa.bench.scoring import number_from_text
from lopa.runtime import BadInputError

_EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
_NUMBER = re.compile(r"\d+")
_CONSTANTS = {"half": 2, "doubl": 2, "twice": 2, "tripl": 3, "quarter": 4, "dozen": 12}
"""Numbers that a question writes as words, by the beginning of the word."""
_ROUNDS = 100
MAX_CHANGE = 2
"""Maximum difference between a number and its replacement."""


Operand = tuple[str, int]
"""("number", index in the question), ("result", index of an earlier equation) or ("constant", value)."""


@dataclass(frozen=True)
class Calculation:
    """The calculation in an answer."""

    numbers: tuple[int, ...]
    """Numbers of the question, in order."""
    equations: tuple[tuple[Operand, str, Operand], ...]
    """Operand, operator and operand of each equation."""

    def results(self, numbers: Sequence[int]) -> list[Fraction]:
        """Return the result of each equation if the question has these `numbers`. Raises ZeroDivisionError."""
        found: list[Fraction] = []
        for one, operator, other in self.equations:
            a, b = (_value(operand, numbers, found) for operand in (one, other))
            found.append({"+": a + b, "-": a - b, "*": a * b}[operator] if operator != "/" else a / b)
        return found


def _value(operand: Operand, numbers: Sequence[int], results: Sequence[Fraction]) -> Fraction:
    kind, value = operand
    return Fraction(numbers[value]) if kind == "number" else results[value] if kind == "result" else Fraction(value)


def calculation_of(item: EvalItem) -> Calculation | None:
    """Return the calculation in an item's answer, or None if it is missing or ambiguous."""
    numbers = tuple(map(int, _NUMBER.findall(item.prompt)))
    equations, results = [], list[int]()
    for one, operator, other, result in _EQUATION.findall(item.answer):
        operands = []
        for value in (int(one), int(other)):
            if value in results:
                operands.append(("result", results.index(value)))
            elif value in numbers:
                operands.append(("number", numbers.index(value)))
            else:
                operands.append(("constant", value))
        equations.append((operands[0], operator, operands[1]))
        results.append(int(result))
    found = Calculation(numbers, tuple(equations))
    used = {value for pair in equations for kind, value in (pair[0], pair[2]) if kind == "number"}
    distinct = len({*numbers, *results}) == len(numbers) + len(results)
    constants = {value for word, value in _CONSTANTS.items() if word in item.prompt}
    if not equations or not distinct or len(used) < len(numbers) or constants & {*numbers, *results}:
        return None
    answer = number_from_text(item.answer)
    return found if found.results(numbers) == results and answer == results[-1] else None


def new_questions(items: Sequence[EvalItem], count: int) -> list[EvalItem]:
    """Return `count` different questions made from `items`, in turn, with every number changed.

    All results are positive integers. Raises BadInputError if the items do not suffice.
    """
    usable = [(item, found) for item in items if (found := calculation_of(item)) is not None]
    draws, made = random.Random(0), dict[str, EvalItem]()
    for _ in range(_ROUNDS):
        for item, calculation in usable:
            changed = _changed_numbers(calculation, draws)
            if changed is None:
                continue
            parts = _NUMBER.split(item.prompt)
            prompt = parts[0] + "".join(f"{number}{part}" for number, part in zip(changed, parts[1:], strict=True))
            made.setdefault(prompt, replace(item, prompt=prompt, answer=f"#### {calculation.results(changed)[-1]}"))
            if len(made) == count:
                return list(made.values())
    raise BadInputError(
        f"{count} new questions from {len(usable)} questions that show their calculation",
        expected=f"at most {len(made)}",
        remedy="lower --new-questions, or choose another file",
    )


def _changed_numbers(calculation: Calculation, draws: random.Random) -> list[int] | None:
    """Return other numbers for a calculation, or None if 100 draws found none with positive integers as results."""
    steps = [change for change in range(-MAX_CHANGE, MAX_CHANGE + 1) if change]
    for _ in range(100):
        numbers = [number + draws.choice(steps) for number in calculation.numbers]
        if min(numbers) < 2:
            continue
        if all(result > 0 and result.denominator == 1 for result in calculation.results(numbers)):
            return numbers
    return None
