"""A text as a grammar has read it, token by token: what may follow, what must follow, whether it may end here.

Nothing changes a Reading: what follows is another one. Knows the library's matchers; no position and no branch.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from lopa.runtime.contract import Bool
from lopa.runtime.grammar.bounded import BoundedExpression
from lopa.runtime.grammar.byte_order import ranked
from lopa.runtime.grammar.library import check_works, matcher
from lopa.runtime.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher


@dataclass(frozen=True, eq=False)
class Reading:
    """Two matchers at the same place: one reads tokens, one reads bytes, of which there are few."""

    vocabulary: Vocabulary
    tokens: "LLMatcher"
    bytes: "LLMatcher"
    hints: tuple[bytes, ...] = ()
    """Texts that may bring it nearer to its end where single bytes do not."""
    text: bytes = b""
    """The text so far, in bytes and symbols (lopa.runtime.grammar.byte_order)."""
    expression: BoundedExpression | None = None
    """The grammar where it is a regular expression: its shortest endings are known exactly."""

    def after(self, token: int) -> "Reading | None":
        """The reading behind `token`; None where the grammar does not allow it, and for tokens without a text."""
        text = self.vocabulary.symbols[token] if 0 <= token < self.vocabulary.size else b""
        if not text:
            return None
        tokens = self.tokens.deep_copy()
        if tokens.try_consume_tokens([token]) != 1:
            check_works(tokens)
            return None
        read = self.bytes.deep_copy()
        if read.try_consume_tokens(list(text)) != len(text):
            check_works(read)
            return None
        return replace(self, tokens=tokens, bytes=read, text=self.text + text)

    @cached_property
    def may_end(self) -> bool:
        """Whether the text may end here."""
        return bool(self.tokens.is_accepting())

    @cached_property
    def must_end(self) -> bool:
        """Whether nothing may follow."""
        if not self.may_end:
            return False
        mask = self.bytes.compute_bitmask()
        check_works(self.bytes)
        return not ranked(mask)

    def allows(self, token: int) -> bool:
        """Whether `token`, which has a text, may follow: one of `allowed`, without the others."""
        if not (0 <= token < self.vocabulary.size and self.vocabulary.symbols[token]):
            return False
        found: bool = self.tokens.validate_tokens([token]) == 1
        check_works(self.tokens)
        return found

    @property
    def allowed(self) -> Bool:
        """[vocabulary]: which tokens with a text may follow. Not kept, since vocabularies are large."""
        bits = np.frombuffer(self.tokens.compute_bitmask(), np.uint8)
        check_works(self.tokens)
        found = np.unpackbits(bits, count=self.vocabulary.size, bitorder="little").view(np.bool_)
        found &= self.vocabulary.has_text
        return found

    @cached_property
    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow, as the tokenizer writes their text, as far as that does not depend on more."""
        return tuple(self.tokens.compute_ff_tokens())


def reading_of_nothing(
    vocabulary: Vocabulary, grammar: str, hints: tuple[bytes, ...] = (), expression: BoundedExpression | None = None
) -> Reading:
    """The reading of an empty text, by a grammar in the library's own form. Raises ValueError in the library's words
    for one that it does not take."""
    tokens, of_bytes = matcher(vocabulary.tokens, grammar), matcher(vocabulary.bytes, grammar)
    return Reading(vocabulary, tokens, of_bytes, hints, expression=expression)
