"""New questions: their answers follow from the numbers in the text."""

import re

import pytest
from tools.rules.new_questions import calculation_of, new_questions

from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl
from lopa.runtime import BadInputError
from lopa.tiny import EVAL

ITEMS = tuple(item for item in eval_set_from_jsonl(EVAL) if item.kind == "math")
OWNED = re.compile(r"Question: \w+ owns (\d+) \w+, and \w+ owns (\d+) times that number\. How many")
DAILY = re.compile(r"Question: \w+ \w+ (\d+) \w+ every day for (\d+) days\. \w+ brings (\d+) more \w+\. How many")
BOUGHT = re.compile(r"Question: \w+ buys (\d+) \w+ for (\d+) dollars each and some \w+ for (\d+) dollars\. How much")


def test_answers_of_known_kinds() -> None:
    """Three kinds of questions, whose answers follow from their sentences."""
    made = new_questions(ITEMS, 300)
    assert len({item.prompt for item in made}) == 300
    assert not {item.prompt for item in made} & {item.prompt for item in ITEMS}
    assert all(re.fullmatch(r"#### [1-9]\d*", item.answer) for item in made)
    checked = 0
    for item in made:
        if found := OWNED.match(item.prompt):
            a, b = map(int, found.groups())
            expected = a + a * b
        elif found := (DAILY.match(item.prompt) or BOUGHT.match(item.prompt)):
            a, b, c = map(int, found.groups())
            expected = a * b + c
        else:
            continue
        checked += 1
        assert item.answer == f"#### {expected}"
        assert item.is_right(f"So it is {expected}.\n#### {expected}")
    assert checked > 10


def test_every_number_changes() -> None:
    numbers = {re.sub(r"\d+", "#", item.prompt): re.findall(r"\d+", item.prompt) for item in ITEMS}
    for item in new_questions(ITEMS, 100):
        old = numbers[re.sub(r"\d+", "#", item.prompt)]
        assert all(new != was for new, was in zip(re.findall(r"\d+", item.prompt), old, strict=True))


HALVED = re.compile(r"Question: \w+ has (\d+) \w+\. Then \w+ finds (\d+) [\w ]+\. \w+ gives half of the [\w ]+\. What")


def test_halves_stay_halves() -> None:
    made = new_questions(ITEMS, 300)
    found = [(match.groups(), item.answer) for item in made if (match := HALVED.match(item.prompt))]
    assert found
    assert all(answer == f"#### {(int(a) + int(b)) // 2}" for (a, b), answer in found)


def test_too_many_new_questions() -> None:
    with pytest.raises(BadInputError, match="10000 new questions"):
        new_questions(ITEMS[:3], 10000)


def item_of(prompt: str, answer: str) -> EvalItem:
    return EvalItem(prompt, answer, "math")


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("5 eggs and 5 more", "5 + 5 = 10\n#### 10"),  # equal numbers
        ("5 eggs and 3 more, 8 lost", "5 + 3 = 8, 8 - 8 = 0\n#### 0"),  # a number equals a result
        ("8 eggs, 4 go, the rest cost as much", "8 - 4 = 4, 4 * 4 = 16\n#### 16"),  # the 4s cannot be told apart
        (
            "9 eggs, 2 more, 3 go, half are left",
            "9 + 2 = 11, 11 - 3 = 8, 8 / 2 = 4\n#### 4",
        ),  # two 2s
        ("5 eggs and 3 more", "#### 8"),  # no equation
        ("5 eggs, 3 more, 2 blue", "5 + 3 = 8\n#### 8"),  # an unused number
        ("5 eggs and 3 more", "5 + 3 = 9\n#### 9"),  # wrong
        ("5 eggs and 3 more", "5 + 3 = 8\n#### 9"),  # another answer
    ],
)
def test_ambiguous_calculations_are_not_used(prompt: str, answer: str) -> None:
    assert calculation_of(item_of(prompt, answer)) is None
    with pytest.raises(BadInputError, match="from 0 questions"):
        new_questions([item_of(prompt, answer)], 1)


def test_a_calculation_with_a_constant_and_a_result() -> None:
    found = calculation_of(item_of("6 eggs double, then 5 go", "6 * 2 = 12, 12 - 5 = 7\n#### 7"))
    assert found is not None
    assert found.results([10, 3]) == [20, 17]
