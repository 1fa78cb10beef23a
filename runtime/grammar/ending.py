"""How a text can still end: a short run of bytes behind which the grammar may stop. Knows matchers of bytes only.

Such a run is kept for every text that is decided, so that no answer runs out of room: what is left of the answer
suffices for it (docs/grammars.md).
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from lopa.runtime.grammar.byte_order import MANY, fewer, ranked
from lopa.runtime.grammar.library import BYTES, check_works

if TYPE_CHECKING:
    from llguidance import LLMatcher

MOST_BYTES = 2**12
"""Of an ending that is found straight on."""
MOST_IDLE = 128
"""Bytes one after another that change nothing, in an ending that is found straight on."""
MOST_STEPS = 4000
"""Bytes tried in one search; some microseconds each."""
ALIKE = 2
"""Texts of one length that a search follows up although they look alike: they may differ further on."""
IDLE = 2**16
"""What a byte costs a search behind which a text looks as before, where others bring it on: one more digit, or one
more character of a string that may end."""

_View = tuple[bytes, bytes, bool]
"""What of a place in a text can be seen: which bytes may follow, which must, and whether it may end."""


def end_of_ending(read: "LLMatcher", ending: bytes, fits: Callable[[bytes], bool]) -> bytes | None:
    """The shortest end of `ending` with which the text that `read` stands behind may stop, and that `fits`; else None.

    So what was found for a text often serves the next one, in which a part of it has been written.
    """
    tried = read.deep_copy()
    for start in range(len(ending), -1, -1):
        end = ending[start:]
        count = tried.try_consume_tokens(list(end))
        check_works(tried)
        found = count == len(end) and tried.is_accepting()
        tried.rollback(count)
        if found and fits(end):
            return end
    return None


def short_endings(read: "LLMatcher", hints: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Texts behind which the text that `read` stands behind may stop: at most two, the one that is found sooner first.

    `hints` are texts that are tried where much may follow, since no byte alone brings the text nearer to its end there.
    """
    for found in (_straight(read, hints), _searched(read, hints)):
        if found is not None:
            yield found


def _straight(read: "LLMatcher", hints: Sequence[bytes]) -> bytes | None:
    """The text that closes whatever is open as soon as it may, and writes what it has to in between.

    Where a byte changes nothing, as in a string that has to be longer, the next one is another.
    """
    place, text, idle = read.deep_copy(), b"", 0
    while len(text) < MOST_BYTES and idle < MOST_IDLE:
        if place.is_accepting():
            return text
        view = _view(place)
        more = view[1]
        if not more:
            allowed = _allowed(place)
            if not allowed:
                return None
            more = ranked(allowed)[idle % len(allowed) :][:1]
            if len(allowed) > MANY and idle:
                more = next((hint for hint in hints if place.validate_tokens(list(hint)) == len(hint)), more)
        count = place.try_consume_tokens(list(more))
        check_works(place)
        if count < len(more):
            return None
        text += more
        idle = idle + 1 if _view(place) == view else 0
    return None


def _searched(read: "LLMatcher", hints: Sequence[bytes]) -> bytes | None:
    """The fewest bytes behind which the text may stop; None where none were found in MOST_STEPS.

    Texts are followed up shortest first. Of those of one length that look alike ALIKE are, and bytes that change
    nothing come last; where nearly any byte may follow, few of them are tried. So it may be a little longer than the
    shortest, never wrong.
    """
    place = read.deep_copy()
    ways: list[tuple[int, int, bytes]] = [(0, 0, b"")]
    seen: dict[tuple[int, _View], int] = {}
    steps = 0
    while ways and steps < MOST_STEPS:
        price, _, text = heapq.heappop(ways)
        place.consume_tokens(list(text))
        if place.is_accepting():
            return text
        view = _view(place)
        nexts: list[tuple[bytes, _View]] = []
        for more in (*([view[1]] if view[1] else fewer(_allowed(place))), *hints):
            steps += 1
            count = place.try_consume_tokens(list(more))
            if count == len(more):
                nexts.append((more, _view(place)))
            check_works(place)
            place.rollback(count)
        place.rollback(len(text))
        all_idle = all(ahead == view for _, ahead in nexts)
        for more, ahead in nexts:
            cost = price + len(more) + (IDLE if ahead == view and not all_idle else 0)
            seen[cost, ahead] = seen.get((cost, ahead), 0) + 1
            if seen[cost, ahead] <= ALIKE:
                heapq.heappush(ways, (cost, steps + len(ways), text + more))
    return None


def _view(place: "LLMatcher") -> _View:
    return bytes(place.compute_bitmask()), bytes(place.compute_ff_bytes()), place.is_accepting()


def _allowed(place: "LLMatcher") -> list[int]:
    bits = place.compute_bitmask()
    check_works(place)
    return [each for each in range(BYTES) if bits[each >> 3] >> (each & 7) & 1]
