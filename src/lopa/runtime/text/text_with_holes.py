"""Texts with holes: given parts, and holes that a decode fills. This module does not depend on token IDs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lopa.runtime.checked_values import check_int, is_unicode, shown
from lopa.runtime.errors import BadInputError

MAX_HOLES = 64
"""Maximum holes of a text."""
MAX_HOLE_TOKENS = 4096
"""Maximum tokens of a hole."""
MAX_REGEX_CHARACTERS = 4096
MAX_LENGTHS = 8
"""Maximum lengths of a hole that are compared. They are evenly spaced."""
_MARK = re.compile(r"<hole:(\d{1,9}(?:-\d{1,9})?)>")
_EXPECTED = (
    'texts, lists of token IDs and holes, e.g. ["def f(x):", Hole(16), "return y"], or "def f(x):<hole:16>return y"'
)


@dataclass(frozen=True)
class Hole:
    """A hole of `tokens` tokens, or of `tokens` to `max_tokens` tokens.

    An end of text that the model writes into it ends it earlier.

    The first forward compares up to MAX_LENGTHS lengths of a range and keeps the one whose masked positions have the
    highest mean confidence. The ranges of several holes grow together. A model with an expand token (DreamOn) instead
    begins with `tokens` and lengthens and shortens each hole while it fills it.
    """

    tokens: int
    max_tokens: int | None = None
    regex: str | None = None
    """Regular expression that the hole's text matches, in the syntax of Rust's regex crate."""

    def __post_init__(self) -> None:
        check_int("tokens of a hole", self.tokens, min=1, max=MAX_HOLE_TOKENS)
        if self.max_tokens is not None:
            check_int("maximum tokens of a hole", self.max_tokens, min=self.tokens, max=MAX_HOLE_TOKENS)
        if self.regex is not None and not _is_regex(self.regex):
            raise BadInputError(
                f"regex of a hole {shown(self.regex)}",
                expected=f"Unicode text of 1 to {MAX_REGEX_CHARACTERS} characters",
                remedy="correct the expression",
            )

    @property
    def most_tokens(self) -> int:
        """The length, or the largest length of a range."""
        return self.tokens if self.max_tokens is None else self.max_tokens


Part = str | tuple[int, ...] | Hole
"""Given text, given token IDs, or a hole."""


@dataclass(frozen=True)
class TextWithHoles:
    """A text with at least one hole. Neighbouring holes have a given part between them."""

    parts: tuple[Part, ...]

    @property
    def holes(self) -> tuple[Hole, ...]:
        """The holes, from left to right."""
        return tuple(part for part in self.parts if isinstance(part, Hole))

    def with_lengths(self) -> "tuple[TextWithHoles, ...]":
        """Return the text with each length of its holes, ascending; one text if no hole has a range."""
        count = min(MAX_LENGTHS, max(hole.most_tokens - hole.tokens for hole in self.holes) + 1)
        shares = np.linspace(0, 1, count) if count > 1 else np.ones(1)
        return tuple(
            TextWithHoles(tuple(_of_length(part, share) if isinstance(part, Hole) else part for part in self.parts))
            for share in shares.tolist()
        )


def _hole_of_mark(lengths: str) -> Hole:
    least, _, most = lengths.partition("-")
    return Hole(int(least), int(most) if most else None)


def _is_regex(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_REGEX_CHARACTERS and is_unicode(value)


def _of_length(hole: Hole, share: float) -> Hole:
    """Return `hole` with the length at this share of its range, from 0 to 1."""
    return Hole(hole.tokens + round(share * (hole.most_tokens - hole.tokens)), regex=hole.regex)


def text_with_holes(parts: str | Iterable[Any]) -> TextWithHoles:
    """Return a checked text with holes.

    `parts` is a text with marks such as <hole:32> or <hole:4-16>, or several parts. These are texts, which contain no
    marks, lists of token IDs, and Hole objects. Raises BadInputError.
    """
    if isinstance(parts, str):
        pieces = _MARK.split(parts)
        found: list[Part] = [_hole_of_mark(piece) if number % 2 else piece for number, piece in enumerate(pieces)]
    else:
        found = [_checked_part(part) for part in parts]
    merged: list[Part] = []
    for part in found:
        if isinstance(part, Hole) and merged and isinstance(merged[-1], Hole):
            raise BadInputError(
                "two holes without text between them", expected="text between holes", remedy="use one larger hole"
            )
        if isinstance(part, Hole) or len(part):
            merged.append(part)
    count = sum(isinstance(part, Hole) for part in merged)
    if not 1 <= count <= MAX_HOLES:
        raise BadInputError(
            "a text without a hole" if not count else f"a text with {count} holes",
            expected=f"1 to {MAX_HOLES} holes",
            remedy="mark each hole with its number of tokens, e.g. <hole:16>",
        )
    return TextWithHoles(tuple(merged))


def _checked_part(part: Any) -> Part:
    if isinstance(part, (str, Hole)):
        return part
    if isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype.kind in "iu":
        return tuple(part.tolist())
    if isinstance(part, (list, tuple)):
        return tuple(part)
    raise BadInputError(f"invalid part {shown(part)} of a text with holes", expected=_EXPECTED, remedy="correct it")
