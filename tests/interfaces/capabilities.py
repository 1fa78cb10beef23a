"""Options and inputs that tests try with each interface to a bundle, and the table of docs/how-to/interfaces.md."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lopa.runtime.strategy import STRATEGIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "interfaces.md"
WRITE = "LOPA_WRITE_INTERFACES"
"""Environment variable with which the tests write the table in place of comparing it."""
PROMPT = "Question: There are 4 bags, and each holds 5 eggs. How many eggs are there now? Answer:"
MESSAGES = [{"role": "user", "content": "There are 4 bags, and each holds 5 eggs. How many eggs are there now?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}
PARTS: list[dict[str, Any]] = [{"text": "Answer: Max has 4 - 1 = "}, {"hole": 2}, {"text": " candies."}]
"""A text with a hole, in the form of the HTTP API."""
STRATEGY_OPTIONS = {name: {"strategy": name} for name, each in STRATEGIES.items() if not each.canvas}
OPTIONS: dict[str, Sequence[Mapping[str, Any]]] = {
    "temperature, seed": ({"temperature": 0.8, "seed": 3},),
    "`top_k`, `top_p`": ({"temperature": 0.8, "top_k": 4}, {"temperature": 0.8, "top_p": 0.9}),
    "`min_p`": ({"temperature": 0.8, "min_p": 0.1},),
    "penalties, `logit_bias`": ({"repetition_penalty": 1.2}, {"logit_bias": {"5": 1.0}}),
    "stop strings, time limit": ({"stop": ["####"]}, {"time_limit": 60.0}),
    "log-probabilities": ({"logprobs": True},),
    "JSON schemas, regex, grammars": (
        {"json_schema": {"type": "boolean"}},
        {"regex": "[0-9]{1,3}"},
        {"grammar": "start: /[0-9]{1,3}/"},
    ),
    "choices": ({"choices": ["yes", "no"]},),
    "remasking": ({"remask_threshold": 0.2, "strategy": "lopa"},),
    "speculative decoding": ({"speculative": True, "strategy": "vanilla"},),
    "`reference`: step by step as the published code": ({"reference": True},),
}
"""Options of one answer for each row of the table. An interface has all options of a row or none."""
REVISION = "[revision of a text](fill-holes.md#revise-a-text)"
INPUTS = ("chats", "tools", "holes", REVISION, "text as it comes", "draft after each step", "cancel")
STREAMED: dict[str, Any] = {"max_new_tokens": 64, "block_size": 8, "stop_at_eos": False}
"""Options of an answer whose text comes in several parts, block by block."""
LOGITS, TEMPLATE, FULL = "an export with `--with-logits`", "a chat template", "`attention=full` with a D2F adapter"
NEEDS = {
    "penalties, `logit_bias`": LOGITS,
    "choices": LOGITS,
    "speculative decoding": "another strategy than `lopa` and `wino`",
    "chats": TEMPLATE,
    "tools": TEMPLATE,
    "holes": FULL,
    REVISION: FULL,
}
"""Features that README's bundle and its default options lack, by row of the table."""
SIZE = 16
"""Tokens of an answer, so that a try is short."""


def tried(answers: Callable[[Mapping[str, Any]], bool], inputs: Mapping[str, Callable[[], bool]]) -> dict[str, str]:
    """Return an interface's column. `answers` tries options; `inputs` has a try of each feature that there is."""
    names = [name for name, options in STRATEGY_OPTIONS.items() if answers(options)]
    few = ", ".join(f"`{name}`" for name in names)
    column = {"strategies": f"all {len(names)}" if len(names) == len(STRATEGY_OPTIONS) else few}
    for row, options in OPTIONS.items():
        found = {answers(each) for each in options}
        assert len(found) == 1, f"{row}: some but not all options are accepted"
        column[row] = "yes" if found == {True} else "-"
    for row in INPUTS:
        column[row] = "yes" if row in inputs and inputs[row]() else "-"
    return column


def compare_or_write(interface: str, column: Mapping[str, str]) -> None:
    """Compare the column with the page's, or write it there."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.search(r"(?<=<!-- tried: capabilities -->\n\n)(?:\|.*\n)+", text)
    assert found is not None
    head, line, *rows = [[cell.strip() for cell in each.strip("|").split("|")] for each in found[0].splitlines()]
    at = head.index(interface)
    page = {row[0]: row[at] for row in rows}
    if WRITE in os.environ:
        cells = {row[0]: row for row in rows}
        new = [[*cells.get(name, [name, *["?"] * (len(head) - 1)])] for name in column]
        for row in new:
            row[at] = column[row[0]]
        table = "".join(f"| {' | '.join(row)} |\n".replace("|  |", "| |") for row in (head, line, *new))
        PAGE.write_text(text.replace(found[0], table), encoding="utf-8")
    else:
        assert page == dict(column), f"run this test with {WRITE}=1, which writes the page"
