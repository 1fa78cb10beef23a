"""Scoring functions, which check a text against the correct answers. No generated code is run."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Literal

_MARKER = "####"
_CLOSED = re.compile(rf"({_MARKER}[^\n#]+){_MARKER}")
_ANY_NUMBER = re.compile(r"(-?)\$?(-?)(\d[\d,]*(?:\.\d+)?|\.\d+)")
"""A number, with its sign before or after a dollar sign."""
_NUMBER = re.compile(rf"[\s*_`]*{_ANY_NUMBER.pattern}")
"""A number at the start of a text, also in Markdown's bold, italic or code."""

Scoring = Literal["number", "last_number", "text", "list", "list_any_order"]
"""Names of the scoring functions in files of prompts."""
Verdict = Callable[[str, Sequence[str]], bool]


def number_from_text(text: str) -> Decimal | None:
    """Return the number after the last #### of `text`, without thousands separators, or None.

    A second #### on the same line closes the first, as in Markdown's headings.

    >>> number_from_text("so 4 * 300\\n#### 1,200 eggs")
    Decimal('1200')
    """
    _, marker, tail = _CLOSED.sub(r"\1", text).rpartition(_MARKER)
    found = _NUMBER.match(tail) if marker else None
    return _number(*found.groups()) if found else None


def last_number(text: str) -> Decimal | None:
    """Return the last number of `text`, or None (flexible-extract of lm-eval's gsm8k).

    >>> last_number("He has 3 left, so 3 * 1.50 = $4.50.")
    Decimal('4.50')
    """
    found = _ANY_NUMBER.findall(text)
    return _number(*found[-1]) if found else None


def _number(before: str, behind: str, digits: str) -> Decimal:
    return Decimal((before or behind) + digits.replace(",", ""))


def _has_number(text: str, answers: Sequence[str]) -> bool:
    number = number_from_text(text)
    return number is not None and number in map(number_from_text, answers)


def _ends_in_number(text: str, answers: Sequence[str]) -> bool:
    number = last_number(text)
    return number is not None and number in map(number_from_text, answers)


def _is_one_of(text: str, answers: Sequence[str]) -> bool:
    return text.strip() in [answer.strip() for answer in answers]


def _is_list(text: str, answers: Sequence[str]) -> bool:
    return _items(text) in map(_items, answers)


def _is_list_in_any_order(text: str, answers: Sequence[str]) -> bool:
    return sorted(_items(text)) in [sorted(_items(answer)) for answer in answers]


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


VERDICTS: Mapping[Scoring, Verdict] = {
    "number": _has_number,
    "last_number": _ends_in_number,
    "text": _is_one_of,
    "list": _is_list,
    "list_any_order": _is_list_in_any_order,
}
"""Scoring functions by their name in files of prompts.

`number` compares the number after the last ####, `last_number` the last number, `text` the stripped text. `list` and
`list_any_order` compare the items between commas, in order or in any order.
"""
NEEDS_NUMBER = frozenset({"number", "last_number"})
"""Scoring functions that need correct answers with a number after ####."""
