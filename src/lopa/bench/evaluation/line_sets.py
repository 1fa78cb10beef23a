"""An evaluation set of questions about waiting lines, with the limits of every question. Pure."""

import random
from typing import Any

from lopa.bench.evaluation.limits import drawn, greedy, limits_of_task
from lopa.bench.evaluation.waiting_lines import LEAST_LENGTH, MOST_LENGTH, TASKS, line_question
from lopa.runtime.checked_values import whole_number

MAX_NEW_TOKENS = 64
"""A line of eight has some 40 tokens in vocabularies that know no names."""
MOST_QUESTIONS = 10**6


def lines_of_task(name: str, *, count: int, length: int, seed: int) -> list[dict[str, Any]]:
    """`count` lines of an evaluation set (lopa.bench.eval_set) about lines of `length` people, decided by `seed`.

    Raises BadInputError for numbers out of range.
    """
    whole_number("count", count, least=1, most=MOST_QUESTIONS)
    whole_number("length", length, least=LEAST_LENGTH, most=MOST_LENGTH)
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
