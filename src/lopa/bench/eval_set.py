"""Evaluation sets: prompts, their decoding options, and the scoring of answers. This module decodes nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lopa.bench.scoring import NEEDS_NUMBER, VERDICTS, number_from_text
from lopa.runtime.checked_values import shown
from lopa.runtime.errors import BadInputError, errors_as_bad_input
from lopa.runtime.files.untrusted_input import object_from_json

SCORED_KIND = "math"
"""Kind whose answers are scored by number when the line has no `scoring`."""
_REMEDY = "check the path, or correct the line"
_EXPECTED = '{"prompt": text, "answer": text, "kind": text}'


@dataclass(frozen=True)
class EvalItem:
    """A prompt and its correct answer."""

    prompt: str
    """Prompt text; empty for a chat."""
    answer: str
    kind: str
    scoring: str | None = None
    """Key of lopa.bench.scoring.VERDICTS, or None to choose by `kind`."""
    answers: tuple[str, ...] = ()
    """All correct answers, if there are several."""
    messages: tuple[Mapping[str, str], ...] = ()
    """Chat messages, in place of a prompt."""
    begun: str = ""
    """Prefilled beginning of a chat's answer. The model receives it, but no answer contains it."""
    stop: tuple[str, ...] = ()
    """Stop strings: an answer ends before the first of them."""
    max_new_tokens: int | None = None
    """Maximum tokens of the answer, or None for the benchmark's default."""
    task_id: str | None = None
    """Sample name in the files for external harnesses."""
    limits: tuple[float, ...] = ()
    """Upper bounds of the accuracy of greedy decoding in 1, 2, ... forwards (lopa.bench.evaluation.limits). More
    forwards have no bound.
    """
    drawn_limits: tuple[float, ...] = ()
    """The same bounds for sampling."""

    @property
    def verdict(self) -> str | None:
        """Return the key of the scoring function, or None if answers are not scored here."""
        return self.scoring or ("number" if self.kind == SCORED_KIND else None)

    def is_right(self, text: str) -> bool:
        """Return True if `text` is a correct answer, and False if the correct answer is unknown."""
        return self.verdict is not None and VERDICTS[self.verdict](text, self.answers or (self.answer,))

    def limit(self, forwards: int, *, drawn: bool) -> float | None:
        """Return the accuracy bound for this number of forwards, or None if unknown."""
        limits = self.drawn_limits if drawn else self.limits
        if not limits:
            return None
        return limits[forwards - 1] if 0 < forwards <= len(limits) else 1.0


def eval_set_from_jsonl(path: Path, *, limit: int | None = None, chats: bool = False) -> tuple[EvalItem, ...]:
    """Return the items of a JSON-lines file, in order, at most `limit` of each kind. Blank lines are skipped.

    Raises BadInputError with line and field for an invalid object and for an answer that the scoring cannot use. Also
    raises it for a chat if `chats` is False.
    """
    items: list[EvalItem] = []
    count: dict[str, int] = {}
    for source, value in objects_from_jsonl(path, expected=_EXPECTED, remedy=_REMEDY):
        item = item_from_object(value, source=source, chats=chats)
        count[item.kind] = count.get(item.kind, 0) + 1
        if limit is None or count[item.kind] <= limit:
            items.append(item)
    return tuple(items)


def objects_from_jsonl(path: Path, *, expected: str, remedy: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSON-lines file with their source for messages. Blank lines are skipped.

    Raises BadInputError for a file that is empty or not UTF-8, and for each line that is not a JSON object.
    """
    with errors_as_bad_input(str(path), expected="a UTF-8 file of JSON lines", remedy=remedy):
        text = path.read_text(encoding="utf-8")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise BadInputError(f"{path} has no lines", expected=f"lines of {expected}", remedy=remedy)
    for number, line in lines:
        source = f"{path} line {number}"
        yield source, object_from_json(line, source=source, expected=expected, remedy=remedy)


def is_correct(text: str, answer: str) -> bool:
    """Return True if `text` and `answer` end in the same number; 8 and 8.0 are equal."""
    return VERDICTS["number"](text, (answer,))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_list_of(each: Callable[[Any], bool], value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(each, value))


def _is_share(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("role", "content"))


_OPTIONAL: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "scoring": (lambda value: _is_text(value) and value in VERDICTS, "one of " + ", ".join(VERDICTS)),
    "answers": (lambda value: _is_list_of(_is_text, value), "a list of texts"),
    "messages": (lambda value: _is_list_of(_is_message, value), 'a list of {"role": text, "content": text}'),
    "begun": (_is_text, "a text"),
    "stop": (lambda value: _is_list_of(_is_text, value), "a list of texts"),
    "max_new_tokens": (lambda value: type(value) is int and value > 0, "an integer from 1"),
    "task_id": (_is_text, "a text"),
    "limits": (lambda value: _is_list_of(_is_share, value), "a list of numbers from 0 to 1"),
    "drawn_limits": (lambda value: _is_list_of(_is_share, value), "a list of numbers from 0 to 1"),
}
"""Optional fields of a line: the check of the value, and the expected value for messages."""


def item_from_object(value: dict[str, Any], *, source: str, chats: bool) -> EvalItem:
    """Return the item of one line. `source` names it in errors. Raises BadInputError as eval_set_from_jsonl does."""
    remedy = "correct the line"
    is_chat = "messages" in value
    if is_chat and not chats:
        raise BadInputError(
            f"{source} is a chat (messages)",
            expected="a prompt (only `bench quality` accepts chats)",
            remedy="replace messages by a prompt",
        )
    if is_chat and "prompt" in value:
        raise BadInputError(
            f"{source} has a prompt and messages", expected="either a prompt or messages", remedy=remedy
        )
    for key in ("answer", "kind") if is_chat else ("prompt", "answer", "kind"):
        if not isinstance(value.get(key), str):
            what = f"has {key} {shown(value[key])}" if key in value else f"has no {key}"
            raise BadInputError(f"{source} {what}", expected=_EXPECTED, remedy=remedy)
    for key, (is_valid, expected) in _OPTIONAL.items():
        if key in value and not is_valid(value[key]):
            raise BadInputError(f"{source} has {key} {shown(value[key])}", expected=expected, remedy=remedy)
    found = {key: value[key] for key in _OPTIONAL if key in value}
    optional: dict[str, Any] = {key: tuple(each) if type(each) is list else each for key, each in found.items()}
    item = EvalItem(value.get("prompt", ""), value["answer"], value["kind"], **optional)
    if item.verdict in NEEDS_NUMBER and None in map(number_from_text, item.answers or (item.answer,)):
        raise BadInputError(
            f"{source} is of kind {item.kind}, but its answer has no number after ####",
            expected="an answer that ends in #### and a number",
            remedy=remedy,
        )
    return item
