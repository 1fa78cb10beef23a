"""The bounds equal an exhaustive search over schedules, correct answers and outcomes of draws."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, product
from math import factorial

import pytest

from lopa.bench.evaluation.limits import drawn, greedy, limits_of_task, shuffle_limit
from lopa.bench.evaluation.waiting_lines import TASKS, LineDraw

LINE = ("a", "b", "c", "d", "e")
AMBIGUOUS = ("shuffle", "replace_random", "insert_random", "remove_random")
Partial = tuple[str | None, ...]


def right_answers(task: str, length: int) -> list[tuple[str, ...]]:
    return list(TASKS[task].answers(LineDraw(LINE[:length], "x", 0)))


def bound_by_search(answers: Sequence[tuple[str, ...]], forwards: int, most_probable: bool) -> Fraction:
    """Return the bound by exhaustive search over masked positions and outcomes of independent draws."""

    @cache
    def best(partial: Partial, left: int) -> Fraction:
        masked = [i for i, value in enumerate(partial) if value is None]
        fitting = [a for a in answers if all(v is None or v == a[i] for i, v in enumerate(partial))]
        if not fitting:
            return Fraction(0)
        if not masked:
            return Fraction(1)
        if not left:
            return Fraction(0)
        choices = [chosen for n in range(1, len(masked) + 1) for chosen in combinations(masked, n)]
        return max(expected(partial, chosen, fitting, left) for chosen in choices)

    def expected(partial: Partial, chosen: tuple[int, ...], fitting: list[tuple[str, ...]], left: int) -> Fraction:
        total = Fraction(0)
        for values in product(*(distribution(fitting, i).items() for i in chosen)):
            after, chance = list(partial), Fraction(1)
            for i, (value, probability) in zip(chosen, values, strict=True):
                after[i] = value
                chance *= probability
            total += chance * best(tuple(after), left - 1)
        return total

    def distribution(fitting: list[tuple[str, ...]], position: int) -> dict[str, Fraction]:
        counts = Counter(answer[position] for answer in fitting)
        if most_probable:
            counts = Counter({value: 1 for value, count in counts.items() if count == max(counts.values())})
        return {value: Fraction(count, counts.total()) for value, count in counts.items()}

    return best((None,) * len(answers[0]), forwards)


@pytest.mark.parametrize("sampler", [drawn, greedy])
@pytest.mark.parametrize(
    ("task", "length"),
    [*((task, length) for task in AMBIGUOUS for length in (2, 3)), ("remove_random", 4), ("copy", 3)],
)
def test_the_bound_equals_the_search(task: str, length: int, sampler: Callable[..., tuple[Fraction, ...]]) -> None:
    answers = right_answers(task, length)
    assert len(set(answers)) == len(answers)
    limits = limits_of_task(task, length, sampler)
    for forwards in range(1, length + 2):
        expected = bound_by_search(answers, forwards, sampler is greedy)
        found = limits[forwards - 1] if forwards <= len(limits) else 1.0
        assert found == pytest.approx(float(expected)), forwards


def test_one_forward_of_a_shuffle_is_the_published_closed_form() -> None:
    for items in range(1, 9):
        assert shuffle_limit(items, 1) == Fraction(factorial(items), items**items)


@pytest.mark.parametrize("task", sorted(set(TASKS) - set(AMBIGUOUS)))
def test_one_right_answer_has_no_bound(task: str) -> None:
    assert len(right_answers(task, 4)) == 1
    assert limits_of_task(task, 4, drawn) == limits_of_task(task, 4, greedy) == (1.0,)
