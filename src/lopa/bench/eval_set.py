"""Evaluation sets: prompts, their decoding options, and the scoring of answers. This module decodes nothing."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta

from lopa.bench.scoring import NEEDS_NUMBER, VERDICTS, Scoring, number_from_text
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import value_from_json

SCORED_KIND = "math"
"""Kind whose answers are scored by number when the line has no `scoring`."""
_REMEDY = "check the path, or correct the line"
_EXPECTED = '{"prompt": text, "answer": text, "kind": text}, and the fields of docs/how-to/measure.md'
_Record = TypeVar("_Record")


@dataclass(frozen=True)
class EvalItem:
    """A prompt and its correct answer."""

    prompt: str
    """Prompt text; empty for a chat."""
    answer: str
    kind: str
    scoring: Scoring | None = None
    """Key of lopa.bench.scoring.VERDICTS, or None to choose by `kind`."""
    answers: Annotated[tuple[str, ...], Meta(min_length=1)] = ()
    """All correct answers, if there are several."""
    messages: Annotated[tuple[Mapping[str, Any], ...], Meta(min_length=1)] = ()
    """Chat messages, in place of a prompt."""
    begun: str = ""
    """Prefilled beginning of a chat's answer. The model receives it, but no answer contains it."""
    stop: Annotated[tuple[str, ...], Meta(min_length=1)] = ()
    """Stop strings: an answer ends before the first of them."""
    max_new_tokens: Annotated[int, Meta(ge=1)] | None = None
    """Maximum tokens of the answer, or None for the benchmark's default."""
    task_id: str | None = None
    """Sample name in the files for external harnesses."""

    @property
    def verdict(self) -> Scoring | None:
        """Return the key of the scoring function, or None if answers are not scored here."""
        return self.scoring or ("number" if self.kind == SCORED_KIND else None)

    def is_right(self, text: str) -> bool:
        """Return True if `text` is a correct answer, and False if the correct answer is unknown."""
        return self.verdict is not None and VERDICTS[self.verdict](text, self.answers or (self.answer,))


def eval_set_from_jsonl(path: Path, *, limit: int | None = None, chats: bool = False) -> tuple[EvalItem, ...]:
    """Return the items of a JSON-lines file, in order, at most `limit` of each kind. Blank lines are skipped.

    Raises BadInputError with line and field for an invalid object and for an answer that the scoring cannot use. Also
    raises it for a chat if `chats` is False.
    """
    items: list[EvalItem] = []
    count: dict[str, int] = {}
    for source, value in records_from_jsonl(path, dict[str, Any], expected=_EXPECTED, remedy=_REMEDY):
        item = item_from_object(value, source=source, chats=chats)
        count[item.kind] = count.get(item.kind, 0) + 1
        if limit is None or count[item.kind] <= limit:
            items.append(item)
    return tuple(items)


def records_from_jsonl(path: Path, kind: type[_Record], *, expected: str, remedy: str) -> Iterator[tuple[str, _Record]]:
    """Yield the records of a JSON-lines file with their source for messages. Blank lines are skipped.

    Raises BadInputError for a file that is empty or not UTF-8, and for each line that is not a JSON object of `kind`.
    """
    with errors_as_bad_input(str(path), expected="a UTF-8 file of JSON lines", remedy=remedy):
        text = path.read_text(encoding="utf-8")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise BadInputError(f"{path} has no lines", expected=f"lines of {expected}", remedy=remedy)
    for number, line in lines:
        source = f"{path} line {number}"
        yield source, value_from_json(line, kind, source=source, expected=expected, remedy=remedy)


def is_correct(text: str, answer: str) -> bool:
    """Return True if `text` and `answer` end in the same number; 8 and 8.0 are equal."""
    return VERDICTS["number"](text, (answer,))


def item_from_object(value: dict[str, Any], *, source: str, chats: bool) -> EvalItem:
    """Return the item of one line. `source` names it in errors. Raises BadInputError as eval_set_from_jsonl does."""
    remedy = "correct the line"
    if "messages" in value:
        if not chats:
            raise BadInputError(
                f"{source} is a chat (messages)",
                expected="a prompt (only `bench quality` accepts chats)",
                remedy="replace messages by a prompt",
            )
        if "prompt" in value:
            raise BadInputError(
                f"{source} has a prompt and messages", expected="either a prompt or messages", remedy=remedy
            )
        value = {**value, "prompt": ""}
    item = value_from_json(json.dumps(value), EvalItem, source=source, expected=_EXPECTED, remedy=remedy)
    if item.verdict in NEEDS_NUMBER and None in map(number_from_text, item.answers or (item.answer,)):
        raise BadInputError(
            f"{source} is of kind {item.kind}, but its answer has no number after ####",
            expected="an answer that ends in #### and a number",
            remedy=remedy,
        )
    return item
