"""A grammar of a text with holes: the whole text satisfies it, or each hole has an expression of its own.

HolesState belongs to a branch, like the state of an answer's grammar. It reads the text from the first hole on, given
tokens included. Every hole that it opens can be filled within its positions, and so can the holes behind it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from lopa.runtime.contract import Bool
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.ending import MAX_TRIES, shortest_ending, straight_ending
from lopa.runtime.grammar.grammar_matcher import GrammarMatcher
from lopa.runtime.grammar.llguidance_library import check_matcher
from lopa.runtime.grammar.state import MAX_STEPS_AT_START, GrammarState, fits
from lopa.runtime.grammar.text_before_given import MatcherBeforeGiven, MayFollow, ViewLimit
from lopa.runtime.grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher

_TRIES, _STEPS = 128, 64
"""Limits of a search for a text of a later hole, which every possible end of a hole needs (ending.py)."""
_VIEWS = 2000
"""Maximum views of all such searches while one token is read. After that a hole counts as one that cannot be filled.
"""
Start = Callable[[int, GrammarMatcher | None], GrammarState | None]
"""Function that returns the state at the start of a hole by its number, from the matcher at the end of the one before;
None if it cannot be filled within its positions."""


@dataclass(frozen=True)
class HolesText:
    """A text with holes as token IDs."""

    given: tuple[tuple[int, ...], ...]
    """Token IDs before, between and behind the holes."""
    sizes: tuple[int, ...]
    """Positions of each hole."""


@dataclass(frozen=True, eq=False)
class HolesState:
    """State after the first `length` tokens from the first hole on."""

    text: HolesText
    start: Start
    limit: ViewLimit
    current: GrammarState
    """State in the hole with the number `hole`, behind its last token that counts."""
    hole: int = 0
    length: int = 0
    place: int = 0
    """Positions read since the start of the hole, given ones behind it included."""
    remasked: int = 0
    cache: "dict[int, Self | None]" = field(default_factory=dict, repr=False)
    """Results of `after` by token."""

    @property
    def ended(self) -> bool:
        """True if all holes are read."""
        return self.hole == len(self.text.sizes) - 1 and self.place >= self.text.sizes[-1]

    @property
    def has_text(self) -> Bool:
        """Mask [vocabulary] of tokens with text."""
        return self._vocabulary.has_text

    @property
    def _vocabulary(self) -> Vocabulary:
        return self.current.matcher.vocabulary

    @property
    def _left(self) -> int:
        """Positions of the hole that are not read yet."""
        return self.text.sizes[self.hole] - self.place

    def after(self, token: int, remaining: int) -> Self | None:  # noqa: ARG002 - each hole has its own number
        """Return the state after `token`, or None if the token is not possible here."""
        if self.ended:
            return None
        if token not in self.cache:
            self.cache[token] = self._read(token)
        found = self.cache[token]
        return None if found is None else replace(found, remasked=self.remasked)

    def _read(self, token: int) -> Self | None:
        moved = replace(self, length=self.length + 1, place=self.place + 1, cache={})
        if self._left > 0:
            if not self.current.ended:
                self.limit.left = _VIEWS
                # A hole needs no end of text, so its last position leaves one position for it.
                after = self.current.after(token, self._left)
                if after is None:
                    return None
                moved = replace(moved, current=after)
            elif token not in self._vocabulary.ends:
                return None
        return moved._next_hole()

    def _next_hole(self) -> Self | None:
        """Return this state, or the one at the start of the next hole if all tokens before it are read."""
        size = self.text.sizes[self.hole]
        if self.ended or self.place < size + len(self.text.given[self.hole + 1]):
            return self
        self.limit.left = _VIEWS
        following = self.start(self.hole + 1, self.current.matcher)
        return None if following is None else replace(self, current=following, hole=self.hole + 1, place=0)

    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow; empty if there is a choice."""
        if self._left > 0:
            return self._vocabulary.ends[:1] if self.current.ended else self.current.forced()
        return ()

    def first_ending_token(self, remaining: int) -> int:  # noqa: ARG002 - each hole has its own number
        """Return the first token of an ending of the hole within its positions."""
        if self.current.ended:
            return self._vocabulary.ends[0]
        return self.current.first_ending_token(self._left + 1)

    def allows(self, token: int) -> bool:
        """Return whether `token` may follow, regardless of the remaining positions."""
        return token in self._vocabulary.ends if self.current.ended else self.current.allows(token)

    def allowed(self) -> Bool:
        """Return the mask [vocabulary] of tokens that may follow, ends of text included."""
        found = self.current.allowed()
        if self.current.ended:
            found[:] = False
            found[list(self._vocabulary.ends)] = True
        return found

    def pieces(self, token: int) -> Iterator[int]:
        """Yield tokens for prefixes of the text of `token`, the longest first."""
        return self.current.pieces(token)

    def with_rejected(self, count: int) -> Self:
        """Return this state after `count` more tokens were rejected and remasked."""
        return replace(self, remasked=self.remasked + count, cache={})


def state_of_whole_text(matcher: GrammarMatcher, text: HolesText) -> HolesState:
    """Return the state before the first hole of a text that satisfies the grammar of `matcher`, which has read nothing.

    Raises BadInputError for a given text that the grammar forbids, and for holes that cannot be filled.
    """
    whole = _WholeText(matcher, text)
    return _state(text, whole.start, whole.limit)


def state_of_expressions(matchers: Sequence[GrammarMatcher], text: HolesText) -> HolesState:
    """Return the state before the first hole of a text whose holes satisfy their own `matchers`.

    Raises BadInputError for a hole that cannot be filled.
    """

    def opened(number: int, before: GrammarMatcher | None) -> GrammarState | None:  # noqa: ARG001
        return _opened(matchers[number], text.sizes[number])

    return _state(text, opened, ViewLimit(_VIEWS), [opened(number, None) for number in range(len(text.sizes))])


def _state(text: HolesText, start: Start, limit: ViewLimit, states: Sequence[GrammarState | None] = ()) -> HolesState:
    first = start(0, None)
    for number, state in enumerate(states or [first]):
        if state is None:
            raise BadInputError(
                f"hole {number + 1} of {text.sizes[number]} tokens cannot be filled, or a hole behind it cannot",
                expected="holes that are long enough for a text that the grammar allows",
                remedy="make the holes longer, or correct the given text",
            )
    assert first is not None
    return HolesState(text, start, limit, first)


def _opened(matcher: GrammarMatcher, size: int) -> GrammarState | None:
    """Return the state of a hole of `size` positions before its first token, or None if it cannot be filled."""
    for tries, steps in ((_TRIES, _STEPS), (MAX_TRIES, MAX_STEPS_AT_START)):
        ending = _ending(matcher.bytes, matcher.hints, matcher.vocabulary, size, tries=tries, steps=steps)
        if ending is not None:
            return GrammarState(matcher, ending)
    return None


def _ending(
    matcher: Any, hints: tuple[bytes, ...], vocabulary: Vocabulary, size: int, *, tries: int, steps: int
) -> bytes | None:
    """Return a text that fills a hole of `size` positions, or None if none is found."""
    straight = straight_ending(matcher, hints, tries)
    if straight is not None and fits(vocabulary, straight, size + 1):
        return straight
    below = None if straight is None else len(straight)
    found = shortest_ending(matcher, hints, steps=steps, below=below).found
    return found if found is not None and fits(vocabulary, found, size + 1) else None


class _WholeText:
    """The holes of a text that satisfies one grammar."""

    def __init__(self, matcher: GrammarMatcher, text: HolesText) -> None:
        self._matcher, self._text = matcher, text
        self.limit = ViewLimit(_VIEWS)
        symbols = matcher.vocabulary.symbols
        self._tokens = [[each for each in given if symbols[each]] for given in text.given]
        self._bytes = [list(b"".join(symbols[each] for each in given)) for given in self._tokens]

    def start(self, number: int, before: GrammarMatcher | None) -> GrammarState | None:
        """Return the state at the start of the hole `number`, behind the hole that `before` has read."""
        if before is None:
            tokens, read = self._matcher.tokens.deep_copy(), self._matcher.bytes.deep_copy()
        else:
            tokens, read = before.tokens.matcher.deep_copy(), before.bytes.matcher.deep_copy()
        for matcher, given in ((tokens, self._tokens[number]), (read, self._bytes[number])):
            if matcher.try_consume_tokens(given) != len(given):
                check_matcher(matcher)
                if before is not None:
                    return None
                raise BadInputError(
                    "the text before the first hole does not satisfy the grammar",
                    expected="a given text that the grammar allows",
                    remedy="correct the text, its white space included",
                )
        matcher = GrammarMatcher(
            self._matcher.vocabulary,
            MatcherBeforeGiven(tokens, self._tokens[number + 1], self._ends_or_continues(number)),
            MatcherBeforeGiven(read, self._bytes[number + 1], self._may_follow(number)),
            self._matcher.hints,
            is_in_hole=True,
        )
        return _opened(matcher, self._text.sizes[number])

    def _is_last(self, number: int) -> bool:
        return number == len(self._text.sizes) - 1

    def _ends_or_continues(self, number: int) -> MayFollow:
        """Return whether the text may end behind the last hole. Bytes decide about the other holes."""
        return _is_accepting if self._is_last(number) else _return_true

    def _may_follow(self, number: int) -> MayFollow:
        """Return a function of a byte matcher behind the hole `number` and the given text that follows it. It returns
        whether the rest can be filled."""
        if self._is_last(number):
            return _is_accepting

        def can_be_filled(read: "LLMatcher") -> bool:
            if self.limit.left <= 0:
                return False
            may_follow, size = self._may_follow(number + 1), self._text.sizes[number + 1]
            following = MatcherBeforeGiven(read.deep_copy(), self._bytes[number + 2], may_follow, self.limit)
            hints, vocabulary = self._matcher.hints, self._matcher.vocabulary
            return _ending(following, hints, vocabulary, size, tries=_TRIES, steps=_STEPS) is not None

        return can_be_filled


def _is_accepting(read: "LLMatcher") -> bool:
    return bool(read.is_accepting())


def _return_true(read: "LLMatcher") -> bool:  # noqa: ARG001
    return True
