"""What a grammar keeps from round to round: the text in front of the frontier as it was read, and a way to its end.

Travels with its branch, unchanged; what follows is another one. Knows answers as tokens in a row, no blocks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Self

from lopa.runtime.contract import Bool
from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.ending import (
    every_end,
    first_that_ends,
    likely_ends,
    shortest_ending,
    straight_ending,
)
from lopa.runtime.grammar.reading import Reading

STEPS_AT_START = 4000
"""Texts that are tried to find the shortest answer, where the first that is found takes too many tokens."""
STEPS = 300
"""The same behind a token, for which other requests may wait: some microseconds each."""
CHARACTERS_OF_POSITION = 8
"""Of an exact ending that is looked for: tokens seldom have more."""
_TRIES_OF_POSITION, _TRIES = 4, 256
"""On the way straight on from a token: for each position that is left, and at any rate. Longer ways will not fit."""


@dataclass(frozen=True, eq=False)
class GrammarState:
    """Behind the first `length` tokens of an answer, all of which are right."""

    reading: Reading
    ending: bytes
    """A text with which the answer may end from here, in the positions that it has left, its end-of-text included."""
    length: int = 0
    ended: bool = False
    """Whether the last of the tokens was an end-of-text."""
    remasked: int = 0
    """Tokens behind the first masked position that the grammar has refused so far."""
    known: "dict[tuple[int, int], tuple[Reading, bytes] | None]" = field(default_factory=dict, repr=False)
    """What was found behind tokens already, by token and room: rounds ask again for as long as the frontier stays."""

    def after(self, token: int, room: int) -> Self | None:
        """The state behind `token`, behind which `room` positions are left; None where it cannot stand here.

        Either the grammar does not allow it, or the answer could not end in time any more.
        """
        if self.ended:
            return None
        if token in self.reading.vocabulary.ends:
            return replace(self, length=self.length + 1, ended=True) if self.reading.may_end else None
        if (token, room) not in self.known:
            self.known[token, room] = self._read(token, room)
        found = self.known[token, room]
        if found is None:
            return None
        return type(self)(*found, self.length + 1, remasked=self.remasked)

    @property
    def has_text(self) -> Bool:
        """[vocabulary]: tokens that write text."""
        return self.reading.vocabulary.has_text

    def allows(self, token: int) -> bool:
        """Return whether `token`, an end of text included, may follow, whatever room is left."""
        if token in self.reading.vocabulary.ends:
            return self.reading.may_end
        return self.reading.allows(token)

    def allowed(self) -> Bool:
        """Return which tokens may follow, [vocabulary], ends of text included."""
        found = self.reading.allowed
        found[list(self.reading.vocabulary.ends)] = self.reading.may_end
        return found

    def pieces(self, token: int) -> Iterator[int]:
        """Yield tokens that write the beginning of what `token` writes, or of that without a space in front, the
        longest first."""
        vocabulary = self.reading.vocabulary
        text = vocabulary.texts[token]
        for whole in (text, text.removeprefix(b" ")):
            for length in range(len(whole), 0, -1):
                found = vocabulary.ids.get(whole[:length])
                if found is not None:
                    yield found

    def with_refused(self, count: int) -> Self:
        """Return this state after `count` more tokens were refused and remasked."""
        return replace(self, remasked=self.remasked + count)

    def _read(self, token: int, room: int) -> tuple[Reading, bytes] | None:
        reading = self.reading.after(token)
        if reading is None:
            return None
        ending = _ending_in(reading, self.ending, reading.vocabulary.symbols[token], room)
        return None if ending is None else (reading, ending)

    def forced(self) -> tuple[int, ...]:
        """The tokens that must follow, whatever the model says; none where there is a choice."""
        if self.ended:
            return ()
        return self.reading.vocabulary.ends[:1] if self.reading.must_end else self.reading.forced

    def way_out(self, room: int) -> int:
        """The first token of `ending`, in `room` positions: as the tokenizer writes it where there is room for that."""
        vocabulary = self.reading.vocabulary
        if not self.ending:
            return vocabulary.ends[0]
        usual = vocabulary.usual(self.ending)
        if usual is not None and len(usual) < room:
            return usual[0]
        fewest = vocabulary.fewest(self.ending)
        assert fewest is not None  # it was found to fit
        return fewest[0]


def state_of_nothing(reading: Reading, room: int) -> GrammarState:
    """The state before the first token of an answer of `room` positions, its end-of-text included.

    Raises BadInputError for a grammar that cannot end in so many.
    """
    exact = _exact_ending(reading, room)
    straight = straight_ending(reading.bytes, reading.hints) if exact is None else exact
    if straight is not None and _fits(reading, straight, room):
        return GrammarState(reading, straight)
    below = None if straight is None else len(straight)
    search = shortest_ending(reading.bytes, reading.hints, steps=STEPS_AT_START, below=below)
    if search.found is not None and _fits(reading, search.found, room):
        return GrammarState(reading, search.found)
    endings = [ending for ending in (straight, search.found) if ending is not None]
    lengths = [len(tokens) + 1 for ending in endings if (tokens := reading.vocabulary.fewest(ending)) is not None]
    if lengths:
        raise BadInputError(
            f"a grammar whose answer takes {min(lengths)} tokens, its end-of-text included, with max_new_tokens {room}",
            expected="room for the shortest answer that the grammar allows",
            remedy=f"raise max_new_tokens to {min(lengths)} or more",
        )
    if search.whole:
        raise BadInputError(
            "a grammar that allows no text",
            expected="a grammar that allows a text, of which every token has one",
            remedy="correct the grammar: what it asks for contradicts itself",
        )
    raise BadInputError(
        f"a grammar of which no answer was found in {STEPS_AT_START} steps",
        expected="a grammar that allows a text which is found by closing what is open, or by trying short ones",
        remedy="if there is one, ask for less in each string and number: shorter ones, fewer patterns and bounds",
    )


def _exact_ending(reading: Reading, room: int) -> bytes | None:
    """The fewest characters with which an answer by an expression may end in `room` positions; None: not known."""
    if reading.expression is None:
        return None
    return reading.expression.ending(reading.text, CHARACTERS_OF_POSITION * room)


def _ending_in(reading: Reading, before: bytes, written: bytes, room: int) -> bytes | None:
    """A text with which the answer may end within `room` positions behind `written`: something of the one `before`, or
    else a new one."""

    def fits(ending: bytes) -> bool:
        return _fits(reading, ending, room)

    if before.startswith(written) and fits(before[len(written) :]):
        return before[len(written) :]  # the grammar has accepted the whole of `before`
    found = first_that_ends(reading.bytes, likely_ends(before, written), fits)
    if found is not None:
        return found
    exact = _exact_ending(reading, room)
    if exact is not None and fits(exact):
        return exact
    straight = straight_ending(reading.bytes, reading.hints, _TRIES + _TRIES_OF_POSITION * room)
    if straight is not None and fits(straight):
        return straight
    found = first_that_ends(reading.bytes, every_end(before), fits)
    if found is not None:
        return found
    below = None if straight is None else len(straight)
    shortest = shortest_ending(reading.bytes, reading.hints, steps=STEPS, below=below).found
    return shortest if shortest is not None and fits(shortest) else None


def _fits(reading: Reading, ending: bytes, room: int) -> bool:
    """Whether `ending` and an end-of-text can be written in `room` positions."""
    vocabulary = reading.vocabulary
    if len(ending) < room and vocabulary.writes_all_bytes:
        return True
    usual = vocabulary.usual(ending)
    if usual is not None and len(usual) < room:
        return True
    fewest = vocabulary.fewest(ending)
    return fewest is not None and len(fewest) < room
