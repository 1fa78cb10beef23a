"""Questions about waiting lines accept only correct answers, and a seed determines the questions."""

import json
import random
from pathlib import Path

import pytest

from lopa.bench.eval_set import EvalItem, eval_set_from_jsonl
from lopa.bench.evaluation.waiting_lines import MAX_LENGTH, NAMES, TASKS, line_question, lines_of_task
from lopa.runtime.errors import BadInputError


def items(task: str, tmp_path: Path, *, count: int = 20, length: int = 5, seed: int = 3) -> tuple[EvalItem, ...]:
    path = tmp_path / "set.jsonl"
    lines = lines_of_task(task, count=count, length=length, seed=seed)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return eval_set_from_jsonl(path)


def line_of_prompt(item: EvalItem) -> list[str]:
    return item.prompt.split(" is ")[1].split(". ")[0].split(", ")


@pytest.mark.parametrize("task", TASKS)
def test_a_question_accepts_its_answers_and_no_others(task: str, tmp_path: Path) -> None:
    for item in items(task, tmp_path):
        line, right = line_of_prompt(item), item.answer.strip().split(", ")
        assert len(line) == 5
        assert item.kind == task
        assert item.prompt.endswith("\nAnswer:")
        assert item.is_right(item.answer)
        assert all(item.is_right(answer) for answer in item.answers)
        assert item.is_right(item.answer + "\n"), "surrounding white space is ignored"
        assert not item.is_right("")
        assert not item.is_right(item.answer + ", Nobody")
        assert not item.is_right(", ".join([right[0], *right[:-1]])), "a repeated name is wrong"
        assert item.limits[-1] == item.drawn_limits[-1] == 1


def test_answers_of_each_task(tmp_path: Path) -> None:
    for item in items("copy", tmp_path):
        assert item.answer.strip().split(", ") == line_of_prompt(item)
    for item in items("reverse", tmp_path):
        assert item.answer.strip().split(", ") == line_of_prompt(item)[::-1]
    for item in items("sort", tmp_path):
        assert item.answer.strip().split(", ") == sorted(line_of_prompt(item))
    for item in items("shuffle", tmp_path):
        line = line_of_prompt(item)
        for _ in range(5):
            random.shuffle(line)
            assert item.is_right(", ".join(line))
    for item in items("replace_index", tmp_path):
        words = item.prompt.split(". ")[1].split()
        expected = line_of_prompt(item)
        expected[int(words[-1]) - 1] = words[0]
        assert item.answer.strip().split(", ") == expected
    for item in items("insert_index", tmp_path):
        words = item.prompt.split(". ")[1].split()
        expected = line_of_prompt(item)
        expected.insert(int(words[-1]) - 1, words[0])
        assert item.answer.strip().split(", ") == expected
    for item in items("remove_index", tmp_path):
        expected = line_of_prompt(item)
        expected.pop(int(item.prompt.split("Number ")[1].split()[0]) - 1)
        assert item.answer.strip().split(", ") == expected


@pytest.mark.parametrize(("task", "count"), [("replace_random", 5), ("insert_random", 6), ("remove_random", 5)])
def test_all_right_answers_are_there(task: str, count: int, tmp_path: Path) -> None:
    for item in items(task, tmp_path):
        assert len(set(item.answers)) == count
        change = {"replace_random": 1, "insert_random": 1, "remove_random": -1}[task]
        line = set(line_of_prompt(item))
        for answer in item.answers:
            names = answer.strip().split(", ")
            assert len(set(names) ^ line) == (2 if task == "replace_random" else abs(change))


def test_the_seed_determines_the_questions(tmp_path: Path) -> None:
    assert items("copy", tmp_path) == items("copy", tmp_path)
    assert items("copy", tmp_path) != items("copy", tmp_path, seed=4)
    assert [line_of_prompt(each) for each in items("copy", tmp_path)] != [
        line_of_prompt(each) for each in items("reverse", tmp_path)
    ]


def test_there_are_enough_names_for_the_longest_line() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert line_question(TASKS["insert_random"], MAX_LENGTH, random.Random(0)).answer.count(",") == MAX_LENGTH


@pytest.mark.parametrize("numbers", [{"count": 0}, {"length": 1}, {"length": MAX_LENGTH + 1}, {"count": 10**7}])
def test_invalid_numbers_are_rejected(numbers: dict[str, int]) -> None:
    with pytest.raises(BadInputError):
        lines_of_task("copy", **{"count": 1, "length": 3, "seed": 0, **numbers})
