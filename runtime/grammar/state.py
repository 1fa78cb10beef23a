"""What a grammar keeps from round to round: the text in front of the frontier as it was read, and a way to its end.

Travels with its branch, unchanged; what follows is another one. Knows answers as tokens in a row, no blocks.
"""

from dataclasses import dataclass, replace

from lopa.runtime.errors import BadInputError
from lopa.runtime.grammar.ending import end_of_ending, short_endings
from lopa.runtime.grammar.reading import Reading


@dataclass(frozen=True, eq=False)
class GrammarState:
    """Behind the first `length` tokens of an answer, all of which are right."""

    reading: Reading
    ending: bytes
    """A text with which the answer may end from here, in the positions that it has left, its end-of-text included."""
    length: int = 0
    ended: bool = False
    """Whether the last of the tokens was an end-of-text."""
    taken_back: int = 0
    """How many tokens behind the frontier the grammar has refused so far."""

    def after(self, token: int, room: int) -> "GrammarState | None":
        """The state behind `token`, behind which `room` positions are left; None where it cannot stand here.

        Either the grammar does not allow it, or the answer could not end in time any more.
        """
        if self.ended:
            return None
        if token in self.reading.vocabulary.ends:
            return replace(self, length=self.length + 1, ended=True) if self.reading.may_end else None
        reading = self.reading.after(token)
        if reading is None:
            return None
        ending = _ending_in(reading, self.ending, room)
        return None if ending is None else replace(self, reading=reading, ending=ending, length=self.length + 1)

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
    endings = list(short_endings(reading.bytes, reading.hints))
    fitting = [ending for ending in endings if _fits(reading, ending, room)]
    if fitting:
        return GrammarState(reading, min(fitting, key=len))
    lengths = [len(tokens) + 1 for ending in endings if (tokens := reading.vocabulary.fewest(ending)) is not None]
    if not lengths:
        raise BadInputError(
            "a grammar of which no answer was found",
            expected="a grammar that allows a text, of which every token has one",
            remedy="correct the grammar",
        )
    raise BadInputError(
        f"a grammar whose answer takes {min(lengths)} tokens, its end-of-text included, with max_new_tokens {room}",
        expected="room for the shortest answer that the grammar allows",
        remedy=f"raise max_new_tokens to {min(lengths)} or more",
    )


def _ending_in(reading: Reading, before: bytes, room: int) -> bytes | None:
    """A text with which the answer may end within `room` positions: an end of the one `before`, or else a new one."""
    found = end_of_ending(reading.bytes, before, lambda ending: _fits(reading, ending, room))
    if found is not None:
        return found
    return next(
        (ending for ending in short_endings(reading.bytes, reading.hints) if _fits(reading, ending, room)), None
    )


def _fits(reading: Reading, ending: bytes, room: int) -> bool:
    """Whether `ending` and an end-of-text can be written in `room` positions."""
    if len(ending) < room and reading.vocabulary.writes_all_bytes:
        return True
    fewest = reading.vocabulary.fewest(ending)
    return fewest is not None and len(fewest) < room
