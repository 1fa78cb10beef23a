"""The prompts of a benchmark and the score of an answer. Does not decode."""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from lopa.runtime.errors import BadInputError

SCORED_KIND = "math"
"""The kind whose answers have a number to compare; prompts of other kinds are decoded for their speed."""
_MARKER = "####"
_NUMBER = re.compile(r"\s*\$?(-?\d[\d,]*(?:\.\d+)?)")
_EXPECTED = '{"prompt": text, "answer": text, "kind": text}'


@dataclass(frozen=True)
class EvalItem:
    """One prompt with the answer that it should get."""

    prompt: str
    answer: str
    kind: str


def eval_set_from_jsonl(path: Path, *, limit: int | None = None) -> tuple[EvalItem, ...]:
    """The items of a JSON-lines file, in order, at most `limit` of each kind; blank lines are passed over.

    Raises BadInputError, naming the line, for one that is not such an object or whose math answer has no number.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"{path}: {error}", expected="a UTF-8 file of JSON lines", remedy="check the path and the encoding"
        ) from error
    items: list[EvalItem] = []
    count: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        item = _item_from_json(line, source=f"{path} line {number}")
        count[item.kind] = count.get(item.kind, 0) + 1
        if limit is None or count[item.kind] <= limit:
            items.append(item)
    if not items:
        raise BadInputError(f"{path} has no line", expected=f"lines of {_EXPECTED}", remedy="check the path")
    return tuple(items)


def number_from_text(text: str) -> Decimal | None:
    """The number behind the last #### of `text`, thousands separators left out; None when there is none.

    >>> number_from_text("so 4 * 300\\n#### 1,200 eggs")
    Decimal('1200')
    """
    _, marker, tail = text.rpartition(_MARKER)
    found = _NUMBER.match(tail) if marker else None
    return Decimal(found[1].replace(",", "")) if found else None


def is_correct(text: str, answer: str) -> bool:
    """True when `text` ends in the number that `answer` ends in; 8 and 8.0 are one number."""
    number = number_from_text(text)
    return number is not None and number == number_from_text(answer)


def _item_from_json(line: str, *, source: str) -> EvalItem:
    remedy = "correct the line"
    try:
        value = json.loads(line)
    except ValueError as error:
        raise BadInputError(f"{source} is not JSON: {error}", expected=_EXPECTED, remedy=remedy) from error
    if not isinstance(value, dict):
        raise BadInputError(f"{source} is no JSON object: {line.strip()[:80]}", expected=_EXPECTED, remedy=remedy)
    texts = {}
    for key in ("prompt", "answer", "kind"):
        if not isinstance(value.get(key), str):
            what = f"has {key} {value[key]!r}" if key in value else f"has no {key}"
            raise BadInputError(f"{source} {what}", expected=_EXPECTED, remedy=remedy)
        texts[key] = value[key]
    item = EvalItem(**texts)
    if item.kind == SCORED_KIND and number_from_text(item.answer) is None:
        raise BadInputError(
            f"{source} is of kind {SCORED_KIND}, but its answer has no number behind {_MARKER}",
            expected=f"an answer that ends in {_MARKER} and a number",
            remedy=remedy,
        )
    return item
