"""The shortest way to match a regular expression, exactly: by matchers of it that allow so many characters at most.

Expressions can be cut with each other (`/a/ & /b/`), and what cannot match any more is not allowed then. So the least
number of characters for which something is allowed is that of the shortest text, and any way on leads there.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lopa.runtime.grammar.byte_order import ranked
from lopa.runtime.grammar.library import lark_from_regex, library, matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_SIZE_RATIO = 1.5


@dataclass(frozen=True, eq=False)
class BoundedExpression:
    """The texts that match `expression` and have at most so many characters. Matchers are made once for each number."""

    bytes: "LLTokenizer"
    expression: str
    made: "dict[int, LLMatcher | None]" = field(default_factory=dict, repr=False)
    max_matchers: int | None = None
    """Matchers that may be made. Then the next larger one stands for one that is not there, and an ending may be longer
    than the shortest. None: as many as are needed."""

    def ending(self, text: bytes, max: int) -> bytes | None:
        """The fewest characters, in bytes, behind which `text` and they match; None where none are found among `most`
        or a few more."""
        place = self._shortest(text, max)
        if place is None:
            return None
        found = b""
        while not place.is_accepting():
            more = bytes(ranked(place.compute_bitmask())[:1])
            if not more or place.try_consume_tokens(list(more)) != 1:
                return None  # at a limit of the library
            found += more
        return found

    def makes_matchers_within(self, seconds: float, max_characters: int) -> bool:
        """Return whether a matcher takes at most so much processor time, by trying sizes up to `max_characters`.

        Small ones can take far longer than large ones: that nothing so short matches is hard to see for the library.
        """
        size = 1
        while size < _SIZE_RATIO * max_characters:
            if min(self._seconds_of_matcher(size) for _ in range(2)) > seconds:
                return False
            size = max(size + 1, int(size * _SIZE_RATIO))
        return True

    def _seconds_of_matcher(self, max: int) -> float:
        began = time.process_time()
        self._matcher(max)
        return time.process_time() - began

    def _shortest(self, text: bytes, max: int) -> "LLMatcher | None":
        """The matcher of the least number of characters that a match has which begins with `text`, behind it."""
        written = len(text.decode(errors="ignore"))
        low, high = written, written
        while (place := self._behind(text, high)) is None:
            if high >= written + max:
                return None
            low, high = high + 1, written + 2 * (high - written) + 8
        while low < high:
            middle = (low + high) // 2
            shorter = self._behind(text, middle)
            if shorter is None:
                low = middle + 1
            else:
                high, place = middle, shorter
        return place

    def _behind(self, text: bytes, max: int) -> "LLMatcher | None":
        """The matcher of at most so many characters behind `text`; None where none is there, or none begins with it."""
        if max not in self.made and (self.max_matchers is None or len(self.made) < self.max_matchers):
            self.made[max] = self._matcher(max)
        made = self.made.get(min((size for size in self.made if size >= max), default=-1))
        if made is None:
            return None
        place = made.deep_copy()
        if place.try_consume_tokens(list(text)) != len(text):
            return None
        return place if place.is_accepting() or ranked(place.compute_bitmask()) else None

    def _matcher(self, max: int) -> "LLMatcher | None":
        lark = f"start: MATCH\nMATCH: {lark_from_regex(self.expression)} & /(?s:.{{0,{max}}})/\n"
        try:
            return matcher(self.bytes, library().LLMatcher.grammar_from_lark(lark))
        except ValueError:
            return None  # a limit of the library, or nothing matches
