"""A matcher in a hole: the text may end where the given text behind the hole may follow."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from llguidance import LLMatcher

MayFollow = Callable[["LLMatcher"], bool]
"""Test whether the rest of the text is possible, for a matcher that has read the given text behind a hole."""
_TOKEN_MARK = 0xFF
"""Byte with which the library begins the name of a token without bytes."""


@dataclass
class ViewLimit:
    """Views that searches inside a search may still take."""

    left: int


class MatcherBeforeGiven:
    """A matcher of the library that accepts its text if `given` may follow, and then `may_follow` returns True.

    It has the library's methods, so that endings of a hole are found as endings of an answer are. `given` has the same
    units as the matcher, token IDs or bytes.
    """

    def __init__(
        self,
        matcher: "LLMatcher",
        given: Sequence[int],
        may_follow: MayFollow,
        limit: "ViewLimit | None" = None,
    ) -> None:
        """Wrap a matcher at the start of a hole. `limit` counts the views of a search inside another search."""
        self.matcher = matcher
        self._given, self._may_follow, self._limit = list(given), may_follow, limit
        self._read: tuple[int, ...] = ()
        """Tokens of the hole so far."""
        self._known: dict[tuple[int, ...], bool] = {}
        """Results of `is_accepting` by the tokens read, for all copies."""

    def is_accepting(self) -> bool:
        """Return whether the hole may end here."""
        if self._read not in self._known:
            count = self.matcher.try_consume_tokens(self._given)
            self._known[self._read] = count == len(self._given) and self._may_follow(self.matcher)
            self.matcher.rollback(count)
        return self._known[self._read]

    def compute_ff_bytes(self) -> bytes:
        """Return the bytes that must follow in the hole, none where it may end."""
        forced: bytes = self.matcher.compute_ff_bytes()
        if _TOKEN_MARK in forced:
            return b""
        ahead = self.deep_copy()
        for number, byte in enumerate(forced):
            if ahead.is_accepting():
                return forced[:number]
            ahead.consume_tokens([byte])
        return forced

    def compute_ff_tokens(self) -> list[int]:
        """Return the tokens that must follow, none where the hole may end. Later ones may belong to the given text."""
        return [] if self.is_accepting() else list(self.matcher.compute_ff_tokens())

    def deep_copy(self) -> Self:
        """Return a matcher at the same place."""
        copy = type(self)(self.matcher.deep_copy(), self._given, self._may_follow, self._limit)
        copy._read, copy._known = self._read, self._known
        return copy

    def try_consume_tokens(self, tokens: list[int]) -> int:
        """Read as many of `tokens` as are allowed, and return their number."""
        count: int = self.matcher.try_consume_tokens(tokens)
        self._read += tuple(tokens[:count])
        return count

    def consume_tokens(self, tokens: list[int]) -> bool:
        """Read `tokens`, all of them allowed."""
        self._read += tuple(tokens)
        return bool(self.matcher.consume_tokens(tokens))

    def validate_tokens(self, tokens: list[int]) -> int:
        """Return how many of `tokens` are allowed."""
        count: int = self.matcher.validate_tokens(tokens)
        return count

    def rollback(self, count: int) -> bool:
        """Forget the last `count` tokens."""
        self._read = self._read[: len(self._read) - count]
        return bool(self.matcher.rollback(count))

    def compute_bitmask(self) -> bytes:
        """Return the mask of allowed tokens."""
        if self._limit is not None:
            self._limit.left -= 1
        mask: bytes = self.matcher.compute_bitmask()
        return mask

    def is_error(self) -> bool:
        """Return whether the library failed."""
        return bool(self.matcher.is_error())

    def get_error(self) -> str:
        """Return the library's message."""
        message: str = self.matcher.get_error()
        return message
