"""Is an answer right? The ways to say so, each a pure function of the text and the right answers. Runs no code."""

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

_MARKER = "####"
_NUMBER = re.compile(r"\s*\$?(-?\d[\d,]*(?:\.\d+)?)")
_ANY_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")

Verdict = Callable[[str, Sequence[str]], bool]


def number_from_text(text: str) -> Decimal | None:
    """The number behind the last #### of `text`, thousands separators left out; None when there is none.

    >>> number_from_text("so 4 * 300\\n#### 1,200 eggs")
    Decimal('1200')
    """
    _, marker, tail = text.rpartition(_MARKER)
    found = _NUMBER.match(tail) if marker else None
    return Decimal(found[1].replace(",", "")) if found else None


def last_number(text: str) -> Decimal | None:
    """The last number of `text`, wherever it stands, as lm-eval's flexible-extract of gsm8k has it.

    >>> last_number("He has 3 left, so 3 * 1.50 = $4.50.")
    Decimal('4.50')
    """
    found = _ANY_NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


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


VERDICTS: Mapping[str, Verdict] = {
    "number": _has_number,
    "last_number": _ends_in_number,
    "text": _is_one_of,
    "list": _is_list,
    "list_any_order": _is_list_in_any_order,
}
"""By the name that a file of prompts has: the number behind the last ####; the last number; the text, white space
around it left out; the items between commas, in this order or in any."""
NEEDS_NUMBER = frozenset({"number", "last_number"})
"""Those of which every right answer has a number behind ####."""
