"""A limit on the tokens of an answer's reasoning: after them the answer has to write </think>.

Models that reason write <think>, their reasoning and </think> before their answer, or their chat template writes
<think> at the end of the prompt. BudgetedState wraps a grammar's state and belongs to a branch, like it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from lopa.runtime.contract import Bool
from lopa.runtime.grammar.state import GrammarState
from lopa.runtime.grammar.vocabulary import Vocabulary
from lopa.runtime.text.tokenizer import CLOSING, OPENING


def reasoning_grammar(is_token: Callable[[str], bool]) -> str:
    """Return a grammar that allows any text with reasoning before it. `is_token` returns whether a mark is a single
    token, which a grammar names without quotes."""
    if is_token(CLOSING):
        opening = f"{OPENING}? " if is_token(OPENING) else ""
        return f"start: ({opening}TEXT {CLOSING})? TEXT\nTEXT: /(?s:.*)/\n"
    return "start: TEXT\nTEXT: /(?s:.*)/\n"


@dataclass(frozen=True, eq=False)
class BudgetedState:
    """State of an answer whose reasoning ends within its first `budget` tokens."""

    grammar: GrammarState
    budget: int
    is_open: bool
    """True if the prompt ends with <think>. Otherwise the answer reasons if it begins with <think>."""
    is_closed: bool = False
    """True once </think> is written."""

    @property
    def length(self) -> int:
        """Number of tokens read."""
        return self.grammar.length

    @property
    def ended(self) -> bool:
        """True if the last token was an end of text."""
        return self.grammar.ended

    @property
    def remasked(self) -> int:
        """Number of tokens that the grammar has rejected and remasked."""
        return self.grammar.remasked

    @property
    def has_text(self) -> Bool:
        """Mask [vocabulary] of tokens with text."""
        return self.grammar.has_text

    @cached_property
    def _due(self) -> bytes:
        """Text that must follow to write </think>, in bytes and symbols; empty while the model may choose, and where
        the grammar does not allow it."""
        if self.is_closed or self.ended or self.length < self.budget:
            return b""
        vocabulary, text = self.grammar.matcher.vocabulary, self.grammar.matcher.text
        opening, closing = (_symbols(mark, vocabulary) for mark in (OPENING, CLOSING))
        if not self.is_open and not text.lstrip().startswith(opening):
            return b""
        written = next(size for size in range(len(closing) - 1, -1, -1) if text.endswith(closing[:size]))
        tokens = vocabulary.fewest_tokens(closing[written:])
        return closing[written:] if tokens and self.grammar.allows(tokens[0]) else b""

    def after(self, token: int, remaining: int) -> Self | None:
        """Return the state after `token` with `remaining` positions left, or None if the token is not possible here."""
        if not self._may_write(token) and self._can_close(remaining):
            return None
        grammar = self.grammar.after(token, remaining)
        if grammar is None:
            return None
        closing = _symbols(CLOSING, grammar.matcher.vocabulary)
        # Only the new token can have completed the mark.
        written = len(grammar.matcher.text) - len(self.grammar.matcher.text)
        is_closed = self.is_closed or closing in grammar.matcher.text[-(written + len(closing) - 1) :]
        return type(self)(grammar, self.budget, self.is_open, is_closed)

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow; empty if there is a choice."""
        if not self._due:
            return self.grammar.forced()
        return self.grammar.matcher.vocabulary.fewest_tokens(self._due) or ()

    def first_ending_token(self, remaining: int) -> int:
        """Return the first token of an ending within `remaining` positions: </think> if it is due and fits."""
        return (
            self.forced()[0]
            if self._due and self._can_close(remaining - 1)
            else self.grammar.first_ending_token(remaining)
        )

    def allows(self, token: int) -> bool:
        """Return whether `token` may follow, regardless of the remaining positions."""
        return self._may_write(token) and self.grammar.allows(token)

    def allowed(self) -> Bool:
        """Return the mask [vocabulary] of tokens that may follow, ends of text included."""
        found = self.grammar.allowed()
        if self._due:
            symbols = self.grammar.matcher.vocabulary.symbols
            may = np.fromiter((self._due.startswith(each) and each != b"" for each in symbols), np.bool_, len(symbols))
            found &= may
        return found

    def pieces(self, token: int) -> Iterator[int]:
        """Yield tokens for prefixes of the text of `token`, the longest first."""
        return self.grammar.pieces(token)

    def with_rejected(self, count: int) -> Self:
        """Return this state after `count` more tokens were rejected and remasked."""
        return replace(self, grammar=self.grammar.with_rejected(count))

    def _can_close(self, remaining: int) -> bool:
        """Return whether the next token of </think> leaves an ending within `remaining` positions. Otherwise the
        reasoning ends as the grammar's own ending does."""
        tokens = self.forced()
        return bool(tokens) and self.grammar.after(tokens[0], remaining) is not None

    def _may_write(self, token: int) -> bool:
        """Return False if </think> is due and `token` is not the beginning of it."""
        if not self._due:
            return True
        symbols = self.grammar.matcher.vocabulary.symbols
        text = symbols[token] if 0 <= token < len(symbols) else b""
        return bool(text) and self._due.startswith(text)


def _symbols(mark: str, vocabulary: Vocabulary) -> bytes:
    """Return `mark` as the matcher's text has it: the symbol of its token, or its bytes."""
    number = vocabulary.added_ids.get(mark.encode())
    return mark.encode() if number is None else vocabulary.symbols[number]
