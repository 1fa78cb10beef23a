"""Text as parsed by a grammar, token by token: what may follow, what must follow, and whether it may end.

A GrammarMatcher is immutable; `after` returns a new object. This module uses the library's matchers and does not depend
on positions or branches.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lopa.runtime.contract import Bool
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.bounded import BoundedExpression
from lopa.runtime.grammar.byte_order import rank_bytes
from lopa.runtime.grammar.llguidance_library import check_matcher, matcher
from lopa.runtime.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(frozen=True, eq=False)
class GrammarMatcher:
    """Two matchers at the same position: one reads tokens, the other single bytes."""

    vocabulary: Vocabulary
    tokens: "LLMatcher"
    bytes_before: "LLMatcher"
    """Byte matcher that has not read the last `unread` bytes of the text yet, since free text needs no such matcher."""
    hints: tuple[bytes, ...] = ()
    """Texts that may bring the answer nearer to its end if single bytes do not."""
    text: bytes = b""
    """Text so far, in bytes and symbols (lopa.runtime.grammar.byte_order)."""
    unread: int = 0
    expression: BoundedExpression | None = None
    """Grammar as a regular expression, if it is one; its shortest endings are known exactly."""
    is_in_hole: bool = False
    """True if given text follows, whose matchers are MatcherBeforeGiven."""

    def after(self, token: int) -> "GrammarMatcher | None":
        """Return the matcher after `token`, or None if the grammar does not allow it or it has no text."""
        text = self.vocabulary.symbols[token] if 0 <= token < self.vocabulary.size else b""
        if not text:
            return None
        tokens = self.tokens.deep_copy()
        if tokens.try_consume_tokens([token]) != 1:
            check_matcher(tokens)
            return None
        before, unread = (self.bytes, 0) if "bytes" in self.__dict__ else (self.bytes_before, self.unread)
        return GrammarMatcher(
            self.vocabulary,
            tokens,
            before,
            self.hints,
            self.text + text,
            unread + len(text),
            self.expression,
            self.is_in_hole,
        )

    @cached_property
    def bytes(self) -> "LLMatcher":
        """Byte matcher behind the text. The grammar allows the same text as bytes and as tokens."""
        if not self.unread:
            return self.bytes_before
        read = self.bytes_before.deep_copy()
        count = read.try_consume_tokens(list(self.text[-self.unread :]))
        check_matcher(read)
        if count != self.unread:
            raise BadInputError(
                "the grammar allows tokens whose text it does not allow",
                expected="a grammar that reads a text and its tokens alike",
                remedy="name tokens only by texts that no other token contains",
            )
        return read

    @cached_property
    def may_end(self) -> bool:
        """True if the text may end here."""
        # In a hole the bytes decide, which look further into the given text behind it.
        return bool(self.tokens.is_accepting()) and (not self.is_in_hole or bool(self.bytes.is_accepting()))

    @cached_property
    def must_end(self) -> bool:
        """True if nothing may follow."""
        if not self.may_end:
            return False
        mask = self.bytes.compute_bitmask()
        check_matcher(self.bytes)
        return not rank_bytes(mask)

    def allows(self, token: int) -> bool:
        """Return whether `token` has text and may follow, without computing `allowed`."""
        if not (0 <= token < self.vocabulary.size and self.vocabulary.symbols[token]):
            return False
        found: bool = self.tokens.validate_tokens([token]) == 1
        check_matcher(self.tokens)
        return found

    @property
    def allowed(self) -> Bool:
        """Mask [vocabulary], True for tokens with text that may follow. It is not cached, since vocabularies are
        large."""
        bits = np.frombuffer(self.tokens.compute_bitmask(), np.uint8)
        check_matcher(self.tokens)
        found = np.unpackbits(bits, count=self.vocabulary.size, bitorder="little").view(np.bool_)
        found &= self.vocabulary.has_text
        return found

    @cached_property
    def forced(self) -> tuple[int, ...]:
        """Tokens of the text that must follow, without tokens that later text could still change."""
        found = tuple(self.tokens.compute_ff_tokens())
        check_matcher(self.tokens)
        return found


def initial_matcher(
    vocabulary: Vocabulary, grammar: str, hints: tuple[bytes, ...] = (), expression: BoundedExpression | None = None
) -> GrammarMatcher:
    """Return the matcher of an empty text by a grammar in the library's form. Raises ValueError with the library's
    message.
    """
    tokens, of_bytes = matcher(vocabulary.tokens, grammar), matcher(vocabulary.bytes, grammar)
    return GrammarMatcher(vocabulary, tokens, of_bytes, hints, expression=expression)
