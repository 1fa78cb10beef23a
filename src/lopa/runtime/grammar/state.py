"""Grammar state between rounds: the parsed text before the first masked position, and an ending of it.

It belongs to a branch and is immutable; `after` returns a new object. This module does not depend on blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from lopa.runtime.contract import Bool
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.ending import (
    first_ending,
    likely_endings,
    shortest_ending,
    straight_ending,
    suffixes,
)
from lopa.runtime.grammar.grammar_matcher import GrammarMatcher
from lopa.runtime.grammar.vocabulary import Vocabulary

MAX_STEPS_AT_START = 4000
"""Maximum texts tried to find the shortest answer, if the first one found takes too many tokens."""
MAX_STEPS = 300
"""Maximum texts tried after a token, while other requests may wait: some microseconds each."""
CHARACTERS_PER_POSITION = 8
"""Characters per position of an exact ending to search for. Tokens rarely have more."""
_TRIES_PER_POSITION, _TRIES = 4, 256
"""Maximum tries of `straight_ending` after a token: per remaining position, and in total. Longer endings do not fit."""


@dataclass(frozen=True, eq=False)
class GrammarState:
    """State after the first `length` tokens of an answer, all of them valid."""

    matcher: GrammarMatcher
    ending: bytes
    """Text with which the answer may end from here, within its remaining positions, end-of-text included."""
    length: int = 0
    ended: bool = False
    """True if the last token was an end-of-text."""
    remasked: int = 0
    """Tokens after the first masked position that the grammar has rejected so far."""
    cache: "dict[tuple[int, int], Self | None]" = field(default_factory=dict, repr=False)
    """Results of `after` by token and `remaining`, for all calls of a round, which walk the same tokens repeatedly."""

    def after(self, token: int, remaining: int) -> Self | None:
        """Return the state after `token` with `remaining` positions left, or None if the token is not possible here.

        Either the grammar does not allow it, or the answer could not end in time.
        """
        if self.ended:
            return None
        if token in self.matcher.vocabulary.ends:
            return replace(self, length=self.length + 1, ended=True) if self.matcher.may_end else None
        if (token, remaining) not in self.cache:
            self.cache[token, remaining] = self._read(token, remaining)
        found = self.cache[token, remaining]
        if found is None or found.remasked == self.remasked:
            return found
        return replace(found, remasked=self.remasked)

    @property
    def has_text(self) -> Bool:
        """Mask [vocabulary] of tokens with text."""
        return self.matcher.vocabulary.has_text

    def allows(self, token: int) -> bool:
        """Return whether `token`, or an end-of-text, may follow, regardless of the remaining positions."""
        if token in self.matcher.vocabulary.ends:
            return self.matcher.may_end
        return self.matcher.allows(token)

    def allowed(self) -> Bool:
        """Return the mask [vocabulary] of tokens that may follow, ends of text included."""
        found = self.matcher.allowed
        found[list(self.matcher.vocabulary.ends)] = self.matcher.may_end
        return found

    def pieces(self, token: int) -> Iterator[int]:
        """Yield tokens for prefixes of the text of `token`, with and without its leading space, the longest first."""
        vocabulary = self.matcher.vocabulary
        text = vocabulary.texts[token]
        for prefix_source in (text, text.removeprefix(b" ")):
            for length in range(len(prefix_source), 0, -1):
                found = vocabulary.ids.get(prefix_source[:length])
                if found is not None:
                    yield found

    def with_rejected(self, count: int) -> Self:
        """Return this state after `count` more tokens were rejected and remasked, with an empty cache."""
        return replace(self, remasked=self.remasked + count, cache={})

    def _read(self, token: int, remaining: int) -> Self | None:
        matcher = self.matcher.after(token)
        if matcher is None:
            return None
        ending = _find_ending(matcher, self.ending, matcher.vocabulary.symbols[token], remaining)
        return None if ending is None else type(self)(matcher, ending, self.length + 1, remasked=self.remasked)

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow, regardless of the model; empty if there is a choice."""
        if self.ended:
            return ()
        return self.matcher.vocabulary.ends[:1] if self.matcher.must_end else self.matcher.forced

    def first_ending_token(self, remaining: int) -> int:
        """Return the first token of `ending` within `remaining` positions, written with usual tokens if possible."""
        vocabulary = self.matcher.vocabulary
        if not self.ending:
            return vocabulary.ends[0]
        usual = vocabulary.tokenizer_tokens(self.ending)
        if usual is not None and len(usual) < remaining:
            return usual[0]
        fewest = vocabulary.fewest_tokens(self.ending)
        assert fewest is not None  # `ending` was checked to fit
        return fewest[0]


def initial_state(matcher: GrammarMatcher, remaining: int) -> GrammarState:
    """Return the state before the first token of an answer of `remaining` positions, end-of-text included.

    Raises BadInputError for a grammar whose answers do not fit.
    """
    exact = _exact_ending(matcher, remaining)
    straight = straight_ending(matcher.bytes, matcher.hints) if exact is None else exact
    if straight is not None and fits(matcher.vocabulary, straight, remaining):
        return GrammarState(matcher, straight)
    below = None if straight is None else len(straight)
    search = shortest_ending(matcher.bytes, matcher.hints, steps=MAX_STEPS_AT_START, below=below)
    if search.found is not None and fits(matcher.vocabulary, search.found, remaining):
        return GrammarState(matcher, search.found)
    endings = [ending for ending in (straight, search.found) if ending is not None]
    lengths = [
        len(tokens) + 1 for ending in endings if (tokens := matcher.vocabulary.fewest_tokens(ending)) is not None
    ]
    if lengths:
        raise BadInputError(
            f"the grammar's shortest answer takes {min(lengths)} tokens with its end-of-text; "
            f"max_new_tokens is {remaining}",
            expected="room for the shortest answer that the grammar allows",
            remedy=f"raise max_new_tokens to {min(lengths)} or more",
        )
    if search.is_exhaustive:
        raise BadInputError(
            "the grammar allows no text",
            expected="a grammar that allows a text of this vocabulary's tokens",
            remedy="remove the contradiction from the grammar",
        )
    raise BadInputError(
        f"no answer to the grammar was found in {MAX_STEPS_AT_START} steps",
        expected="a grammar with a short answer, or one that is found by closing what is open",
        remedy="simplify strings and numbers of the grammar: shorter lengths, fewer patterns and bounds",
    )


def _exact_ending(matcher: GrammarMatcher, remaining: int) -> bytes | None:
    """Return the shortest ending of an expression's answer within `remaining` positions, or None if unknown."""
    if matcher.expression is None:
        return None
    return matcher.expression.ending(matcher.text, CHARACTERS_PER_POSITION * remaining)


def _find_ending(matcher: GrammarMatcher, before: bytes, written: bytes, remaining: int) -> bytes | None:
    """Return a text with which the answer may end within `remaining` positions after `written`: part of `before`, or a
    new one."""

    def is_short(ending: bytes) -> bool:
        return fits(matcher.vocabulary, ending, remaining)

    if not before and matcher.may_end and is_short(b""):
        return b""  # free text, which may end anywhere
    if before.startswith(written) and is_short(before[len(written) :]):
        return before[len(written) :]  # the grammar has accepted the whole of `before`
    found = first_ending(matcher.bytes, likely_endings(before, written), is_short)
    if found is not None:
        return found
    exact = _exact_ending(matcher, remaining)
    if exact is not None and is_short(exact):
        return exact
    straight = straight_ending(matcher.bytes, matcher.hints, _TRIES + _TRIES_PER_POSITION * remaining)
    if straight is not None and is_short(straight):
        return straight
    if straight is not None and not is_short(before):
        return None  # in the last positions nearly every token gets here, and searches take milliseconds
    found = first_ending(matcher.bytes, suffixes(before), is_short)
    if found is not None:
        return found
    below = None if straight is None else len(straight)
    shortest = shortest_ending(matcher.bytes, matcher.hints, steps=MAX_STEPS, below=below).found
    return shortest if shortest is not None and is_short(shortest) else None


def fits(vocabulary: Vocabulary, ending: bytes, remaining: int) -> bool:
    """Return whether `ending` and an end-of-text fit into `remaining` positions."""
    if len(ending) < remaining and vocabulary.writes_all_bytes:
        return True
    usual = vocabulary.tokenizer_tokens(ending)
    if usual is not None and len(usual) < remaining:
        return True
    fewest = vocabulary.fewest_tokens(ending)
    return fewest is not None and len(fewest) < remaining
