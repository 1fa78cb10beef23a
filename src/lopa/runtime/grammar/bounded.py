"""Exact shortest matches of a regular expression, found with matchers that accept a maximum number of characters.

Expressions can be intersected (`/a/ & /b/`), and the intersection allows only what can still match. The smallest size
that allows any text is therefore the length of the shortest text, and every allowed byte leads to such a text.
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lopa.runtime.errors import raise_if_from_handler
from lopa.runtime.grammar.byte_order import rank_bytes
from lopa.runtime.grammar.llguidance_library import DEAD_END, LIMITS, check_matcher, lark_from_regex, library, matcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

_SIZE_RATIO = 1.5


@dataclass(frozen=True, eq=False)
class BoundedExpression:
    """Texts that match `expression`, bounded by a number of characters. One matcher is made per number."""

    bytes: "LLTokenizer"
    expression: str
    matchers: "dict[int, LLMatcher | None]" = field(default_factory=dict, repr=False)
    max_matchers: int | None = None
    """Maximum number of matchers to make; None for no limit. Beyond it the next larger matcher is used, and an ending
    may be longer than the shortest."""

    def ending(self, text: bytes, max_characters: int) -> bytes | None:
        """Return the shortest ending of `text` in bytes, or None if none is found within about `max_characters`
        characters."""
        position = self._shortest(text, max_characters)
        if position is None:
            return None
        found = b""
        while not position.is_accepting():
            more = bytes(rank_bytes(position.compute_bitmask())[:1])
            if not more or position.try_consume_tokens(list(more)) != 1:
                check_matcher(position, *LIMITS)
                return None  # a limit of the library was exceeded
            found += more
        return found

    def makes_matchers_within(self, seconds: float, max_characters: int) -> bool:
        """Return whether making a matcher takes at most `seconds` of processor time, for sizes up to `max_characters`
        characters.

        Small sizes can take far longer than large ones, since the library takes long to find that no text of that
        length matches.
        """
        size = 1
        while size < _SIZE_RATIO * max_characters:
            if min(self._seconds_of_matcher(size) for _ in range(2)) > seconds:
                return False
            size = max(size + 1, int(size * _SIZE_RATIO))
        return True

    def _seconds_of_matcher(self, max_characters: int) -> float:
        began = time.process_time()
        self._matcher(max_characters)
        return time.process_time() - began

    def _shortest(self, text: bytes, max_characters: int) -> "LLMatcher | None":
        """Return the smallest matcher that allows a match beginning with `text`, positioned after it."""
        written = len(text.decode(errors="ignore"))
        low, high = written, written
        while (position := self._matcher_after(text, high)) is None:
            if high >= written + max_characters:
                return None
            low, high = high + 1, written + 2 * (high - written) + 8
        while low < high:
            middle = (low + high) // 2
            shorter = self._matcher_after(text, middle)
            if shorter is None:
                low = middle + 1
            else:
                high, position = middle, shorter
        return position

    def _matcher_after(self, text: bytes, max_characters: int) -> "LLMatcher | None":
        """Return the matcher of at most `max_characters` characters after `text`, or None if nothing matches."""
        if max_characters not in self.matchers and (
            self.max_matchers is None or len(self.matchers) < self.max_matchers
        ):
            self.matchers[max_characters] = self._matcher(max_characters)
        matchers = self.matchers.get(min((size for size in self.matchers if size >= max_characters), default=-1))
        if matchers is None:
            return None
        position = matchers.deep_copy()
        is_read = position.try_consume_tokens(list(text)) == len(text)
        may_follow = is_read and (position.is_accepting() or rank_bytes(position.compute_bitmask()))
        check_matcher(position, *DEAD_END, *LIMITS)
        return position if may_follow else None

    def _matcher(self, max_characters: int) -> "LLMatcher | None":
        lark = f"start: MATCH\nMATCH: {lark_from_regex(self.expression)} & /(?s:.{{0,{max_characters}}})/\n"
        try:
            return matcher(self.bytes, library().LLMatcher.grammar_from_lark(lark))
        except ValueError as error:
            raise_if_from_handler(error)
            return None  # nothing matches, or a limit of the library was exceeded
