"""The closed limits are those of every way to decide, tried over all right answers and all outcomes of every draw."""

from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations, permutations, product
from math import factorial

import pytest

from lopa.bench.evaluation.limits import drawn, greedy, limits_of_task, shuffle_limit
from lopa.bench.evaluation.waiting_lines import TASKS, Drawn

LINE = ("a", "b", "c", "d", "e")
HIDDEN = ("shuffle", "replace_random", "insert_random", "remove_random")
Partial = tuple[str | None, ...]


def right_answers(task: str, length: int) -> list[tuple[str, ...]]:
    return list(TASKS[task].answers(Drawn(LINE[:length], "x", 0)))


def best_of_all_ways(answers: Sequence[tuple[str, ...]], forwards: int, most_probable: bool) -> Fraction:
    """By trying: every choice of open positions, every outcome of independent draws, right or wrong."""

    @cache
    def best(partial: Partial, left: int) -> Fraction:
        open_ones = [i for i, value in enumerate(partial) if value is None]
        fitting = [a for a in answers if all(v is None or v == a[i] for i, v in enumerate(partial))]
        if not fitting:
            return Fraction(0)
        if not open_ones:
            return Fraction(1)
        if not left:
            return Fraction(0)
        choices = [chosen for n in range(1, len(open_ones) + 1) for chosen in combinations(open_ones, n)]
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


@pytest.mark.parametrize("decided", [drawn, greedy])
@pytest.mark.parametrize(
    ("task", "length"), [*((task, length) for task in HIDDEN for length in (2, 3)), ("remove_random", 4), ("copy", 3)]
)
def test_the_limit_is_the_best_of_all_ways(
    task: str, length: int, decided: Callable[..., tuple[Fraction, ...]]
) -> None:
    answers = right_answers(task, length)
    assert len(set(answers)) == len(answers)
    limits = limits_of_task(task, length, decided)
    for forwards in range(1, length + 2):
        expected = best_of_all_ways(answers, forwards, decided is greedy)
        found = limits[forwards - 1] if forwards <= len(limits) else 1.0
        assert found == pytest.approx(float(expected)), forwards


def test_one_forward_of_a_shuffle_is_the_published_closed_form() -> None:
    for items in range(1, 9):
        assert shuffle_limit(items, 1) == Fraction(factorial(items), items**items)


@pytest.mark.parametrize("task", HIDDEN)
@pytest.mark.parametrize("decided", [drawn, greedy])
def test_more_forwards_are_never_worse_and_end_at_certainty(
    task: str, decided: Callable[..., tuple[Fraction, ...]]
) -> None:
    for length in range(2, 7):
        limits = limits_of_task(task, length, decided)
        assert list(limits) == sorted(limits)
        assert limits[-1] == 1
        assert len(limits) <= length + (task == "insert_random")


@pytest.mark.parametrize("task", sorted(set(TASKS) - set(HIDDEN)))
def test_one_right_answer_has_no_limit(task: str) -> None:
    assert len(right_answers(task, 4)) == 1
    assert limits_of_task(task, 4, drawn) == limits_of_task(task, 4, greedy) == (1.0,)


def test_right_answers_of_a_shuffle_are_all_orders() -> None:
    assert set(right_answers("shuffle", 4)) == set(permutations(LINE[:4]))
