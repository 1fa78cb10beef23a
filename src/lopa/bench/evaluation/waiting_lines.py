"""Questions about a line of people, modelled on the waiting lines of ParallelBench (arXiv 2510.04767).

A model that writes one name at a time can answer all questions. Unmasking several tokens at a time is harder. With more
than one correct answer, tokens depend on each other (lopa.bench.evaluation.limits). Texts and code are original.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from lopa.bench.evaluation.limits import drawn, greedy, limits_of_task
from lopa.runtime.checked_values import check_int

NAMES = (
    *("Adam", "Alice", "Anna", "Ben", "Clara", "Daniel", "David", "Emma", "Eric", "Fiona", "Frank", "Grace"),
    *("Henry", "Hugo", "Ida", "Ivy", "Jack", "James", "Julia", "Kate", "Laura", "Leo", "Lucy", "Mark"),
    *("Martin", "Mary", "Nina", "Omar", "Paul", "Peter", "Robert", "Ruth", "Sam", "Sarah", "Tom", "Zoe"),
)
MIN_LENGTH, MAX_LENGTH = 2, 8
MAX_NEW_TOKENS = 64
"""Maximum tokens of an answer. A line of eight takes about 40 if the vocabulary has no names."""
MAX_QUESTIONS = 10**6
Line = tuple[str, ...]


@dataclass(frozen=True)
class LineDraw:
    """Randomly drawn parts of a question."""

    line: Line
    name: str
    """Name of a person who is not in the line."""
    place: int
    """Index in the line, from 0."""


@dataclass(frozen=True)
class LineTask:
    """Task text and correct answers for a line."""

    instruction: str
    """Task text with the fields {name} and {number}, counted from 1."""
    answers: Callable[[LineDraw], Iterator[Line]]
    """Function that yields all correct answers, each once."""
    any_order: bool = False
    """True if every order of the first answer is correct. Such answers are too many to list."""


@dataclass(frozen=True)
class LineQuestion:
    """A prompt with its correct answers."""

    prompt: str
    answer: str
    """A correct answer, chosen at random."""
    answers: tuple[str, ...]
    """All correct answers, or only `answer` if every order is correct."""
    any_order: bool


def _insert(line: Line, place: int, name: str) -> Line:
    return (*line[:place], name, *line[place:])


def _replace(line: Line, place: int, name: str) -> Line:
    return (*line[:place], name, *line[place + 1 :])


def _remove(line: Line, place: int) -> Line:
    return line[:place] + line[place + 1 :]


TASKS: Mapping[str, LineTask] = {
    "copy": LineTask("Write it down as it is.", lambda q: iter([q.line])),
    "reverse": LineTask("Write it down from the last to the first.", lambda q: iter([q.line[::-1]])),
    "sort": LineTask("Write it down in alphabetical order.", lambda q: iter([tuple(sorted(q.line))])),
    "shuffle": LineTask("Write it down in any order.", lambda q: permutations(q.line), any_order=True),
    "replace_index": LineTask(
        "{name} takes the place of number {number}. Write it down.",
        lambda q: iter([_replace(q.line, q.place, q.name)]),
    ),
    "replace_random": LineTask(
        "{name} takes the place of somebody. Write down one line that it may be now.",
        lambda q: (_replace(q.line, place, q.name) for place in range(len(q.line))),
    ),
    "insert_index": LineTask(
        "{name} comes in as number {number}. Write it down.", lambda q: iter([_insert(q.line, q.place, q.name)])
    ),
    "insert_random": LineTask(
        "{name} comes in somewhere. Write down one line that it may be now.",
        lambda q: (_insert(q.line, place, q.name) for place in range(len(q.line) + 1)),
    ),
    "remove_index": LineTask("Number {number} leaves. Write it down.", lambda q: iter([_remove(q.line, q.place)])),
    "remove_random": LineTask(
        "Somebody leaves. Write down one line that it may be now.",
        lambda q: (_remove(q.line, place) for place in range(len(q.line))),
    ),
}
"""ParallelBench's ten tasks by name."""


def line_question(task: LineTask, length: int, draw: random.Random) -> LineQuestion:
    """Return a question about a line of `length` people. `draw` is the random generator."""
    *line, name = draw.sample(NAMES, length + 1)
    drawn = LineDraw(tuple(line), name, draw.randrange(length))
    instruction = task.instruction.format(name=name, number=drawn.place + 1)
    prompt = f"Question: The waiting line is {text_of_line(line)}. {instruction}\nAnswer:"
    if task.any_order:
        answer = text_of_line(draw.sample(line, length))
        return LineQuestion(prompt, answer, (answer,), any_order=True)
    answers = tuple(map(text_of_line, task.answers(drawn)))
    return LineQuestion(prompt, draw.choice(answers), answers, any_order=False)


def text_of_line(line: Sequence[str]) -> str:
    """Return a line as it appears in prompts and answers."""
    return ", ".join(line)


def lines_of_task(name: str, *, count: int, length: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` lines of an evaluation set (lopa.bench.eval_set) about lines of `length` people.

    `seed` determines the draws. Raises BadInputError for numbers out of range.
    """
    check_int("count", count, min=1, max=MAX_QUESTIONS)
    check_int("length", length, min=MIN_LENGTH, max=MAX_LENGTH)
    limits = {"limits": limits_of_task(name, length, greedy), "drawn_limits": limits_of_task(name, length, drawn)}
    # The name is part of the seed, so tasks with the same seed have different lines.
    draw = random.Random(f"{name} {length} {seed}")
    lines = []
    for _ in range(count):
        question = line_question(TASKS[name], length, draw)
        line: dict[str, Any] = {"prompt": question.prompt, "answer": f" {question.answer}", "kind": name}
        line["scoring"] = "list_any_order" if question.any_order else "list"
        line["answers"] = [f" {answer}" for answer in question.answers]
        lines.append(line | {"max_new_tokens": MAX_NEW_TOKENS} | limits)
    return lines
