"""Questions about a line of people, after the waiting lines of ParallelBench (arXiv 2510.04767). Pure.

Whoever reads the line can answer all of them at once, one by one. Several tokens at a time are another matter: where
more than one answer is right, tokens depend on each other (lopa.bench.evaluation.limits). Words, prompts and code are
our own.
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
"""A line of eight has some 40 tokens in vocabularies that know no names."""
MAX_QUESTIONS = 10**6
Line = tuple[str, ...]


@dataclass(frozen=True)
class Drawn:
    """What a question is made of."""

    line: Line
    name: str
    """Of somebody who is not in the line."""
    place: int
    """Counted from 0, in the line."""


@dataclass(frozen=True)
class LineTask:
    """What is asked of a line, and which answers are right."""

    words: str
    """With {name} and {number}, counted from 1, where they matter."""
    answers: Callable[[Drawn], Iterator[Line]]
    """All right ones, each once."""
    any_order: bool = False
    """Every order of the first answer is right: too many to list."""


@dataclass(frozen=True)
class LineQuestion:
    """A prompt with its right answers."""

    prompt: str
    answer: str
    """One right answer, drawn from all of them."""
    answers: tuple[str, ...]
    """All right ones; only `answer` where every order of it is right."""
    any_order: bool


def _put_in(line: Line, place: int, name: str) -> Line:
    return (*line[:place], name, *line[place:])


def _put_for(line: Line, place: int, name: str) -> Line:
    return (*line[:place], name, *line[place + 1 :])


def _without(line: Line, place: int) -> Line:
    return line[:place] + line[place + 1 :]


TASKS: Mapping[str, LineTask] = {
    "copy": LineTask("Write it down as it is.", lambda q: iter([q.line])),
    "reverse": LineTask("Write it down from the last to the first.", lambda q: iter([q.line[::-1]])),
    "sort": LineTask("Write it down in alphabetical order.", lambda q: iter([tuple(sorted(q.line))])),
    "shuffle": LineTask("Write it down in any order.", lambda q: permutations(q.line), any_order=True),
    "replace_index": LineTask(
        "{name} takes the place of number {number}. Write it down.",
        lambda q: iter([_put_for(q.line, q.place, q.name)]),
    ),
    "replace_random": LineTask(
        "{name} takes the place of somebody. Write down one line that it may be now.",
        lambda q: (_put_for(q.line, place, q.name) for place in range(len(q.line))),
    ),
    "insert_index": LineTask(
        "{name} comes in as number {number}. Write it down.", lambda q: iter([_put_in(q.line, q.place, q.name)])
    ),
    "insert_random": LineTask(
        "{name} comes in somewhere. Write down one line that it may be now.",
        lambda q: (_put_in(q.line, place, q.name) for place in range(len(q.line) + 1)),
    ),
    "remove_index": LineTask("Number {number} leaves. Write it down.", lambda q: iter([_without(q.line, q.place)])),
    "remove_random": LineTask(
        "Somebody leaves. Write down one line that it may be now.",
        lambda q: (_without(q.line, place) for place in range(len(q.line))),
    ),
}
"""By name: ParallelBench's ten, in our words."""


def line_question(task: LineTask, length: int, draw: random.Random) -> LineQuestion:
    """A question about a line of `length` people; `draw` decides everything."""
    *line, name = draw.sample(NAMES, length + 1)
    drawn = Drawn(tuple(line), name, draw.randrange(length))
    asked = task.words.format(name=name, number=drawn.place + 1)
    prompt = f"Question: The waiting line is {text_of_line(line)}. {asked}\nAnswer:"
    if task.any_order:
        answer = text_of_line(draw.sample(line, length))
        return LineQuestion(prompt, answer, (answer,), any_order=True)
    answers = tuple(map(text_of_line, task.answers(drawn)))
    return LineQuestion(prompt, draw.choice(answers), answers, any_order=False)


def text_of_line(line: Sequence[str]) -> str:
    """As it stands in prompts and answers."""
    return ", ".join(line)


def lines_of_task(name: str, *, count: int, length: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` lines of an evaluation set (lopa.bench.eval_set) about lines of `length` people, drawn by `seed`.

    Raises BadInputError for numbers out of range.
    """
    check_int("count", count, min=1, max=MAX_QUESTIONS)
    check_int("length", length, min=MIN_LENGTH, max=MAX_LENGTH)
    limits = {"limits": limits_of_task(name, length, greedy), "drawn_limits": limits_of_task(name, length, drawn)}
    # The name is in the seed, so that the tasks of one seed ask of different lines.
    draw = random.Random(f"{name} {length} {seed}")
    lines = []
    for _ in range(count):
        asked = line_question(TASKS[name], length, draw)
        line: dict[str, Any] = {"prompt": asked.prompt, "answer": f" {asked.answer}", "kind": name}
        line["scoring"] = "list_any_order" if asked.any_order else "list"
        line["answers"] = [f" {answer}" for answer in asked.answers]
        lines.append(line | {"max_new_tokens": MAX_NEW_TOKENS} | limits)
    return lines
