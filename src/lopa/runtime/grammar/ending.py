"""How a text can still end: a short run of bytes behind which the grammar may stop. Knows matchers of bytes only.

Such a run is kept for every text that is decided, so that no answer runs out of room: what is left of the answer
suffices for it (docs/grammars.md).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lopa.runtime.grammar.byte_order import MANY, SYMBOLS, fewer, ranked
from lopa.runtime.grammar.library import check_works, forced_bytes

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_TRIES = 2**13
"""Of bytes, or of more where they must follow, on the way straight on."""
FEW = 12
"""So few bytes, as digits are, are all looked behind where one changed nothing; of more only now and then."""
ALIKE = 2
"""Texts of one length that a search follows up although they look alike: they may differ further on."""
IDLE = 6
"""What a byte costs a search behind which a text looks as before, where others bring it on: one more digit, or one
more character of a string that may end."""


AGAIN = 4
"""So often a place may look the same before it is seen as a circle."""
_SPACE, _ASCII, _NUMBER = b" ", 128, b"-0123456789"


class _View(NamedTuple):
    """What of a place in a text can be seen."""

    mask: bytes
    """Which bytes may follow, as bits."""
    forced: bytes
    """Those that must."""
    may_end: bool


class Search(NamedTuple):
    """What came of a search."""

    found: bytes | None
    """The fewest bytes, but for what was left out, behind which the text may stop."""
    whole: bool
    """Whether it looked at all that may follow: then, where it found nothing, there is nothing."""


def likely_ends(ending: bytes, written: bytes) -> Iterator[bytes]:
    """What the text may end with, where it could end with `ending` and `written` was written instead: what is left of
    it, all of it (one more character of a string), or what is left behind a part that `written` ends with."""
    if ending.startswith(written):
        yield ending[len(written) :]
        return
    yield ending
    yield from (
        ending[size:] for size in range(1, min(len(ending), len(written)) + 1) if written.endswith(ending[:size])
    )


def every_end(ending: bytes) -> Iterator[bytes]:
    """All ends of `ending`, the shortest first."""
    return (ending[start:] for start in range(len(ending), -1, -1))


def first_that_ends(read: "LLMatcher", texts: Iterable[bytes], fits: Callable[[bytes], bool]) -> bytes | None:
    """The first of `texts` with which the text that `read` stands behind may stop, and that `fits`; else None."""
    tried = read.deep_copy()
    allowed = ranked(_view(tried).mask)
    for text in texts:
        if text and text[0] not in allowed:
            continue
        count = tried.try_consume_tokens(list(text))
        check_works(tried)
        found = count == len(text) and tried.is_accepting()
        tried.rollback(count)
        if found and fits(text):
            return text
    return None


def straight_ending(read: "LLMatcher", hints: Sequence[bytes] = (), max: int = MAX_TRIES) -> bytes | None:
    """The text that closes whatever is open as soon as it may, and writes what it has to in between; None where that
    leads nowhere in `most` tries.

    `hints` are texts that are tried where much may follow, since no byte alone brings the text nearer to its end there,
    and numbers where one may begin.
    """
    place, text, idle = read.deep_copy(), b"", 0
    view, visits, tries = _view(place), Counter[_View](), 0
    while not view.may_end:
        visits[view] += 1
        more, looked_at = (view.forced, 0) if view.forced else _next(place, view, idle, visits, hints)
        tries += 1 + looked_at
        if not more or tries > max or place.try_consume_tokens(list(more)) < len(more):
            check_works(place)
            return None
        text, ahead = text + more, _view(place)
        idle, view = idle + 1 if ahead == view else 0, ahead
    return text


def _next(
    place: "LLMatcher", view: _View, idle: int, visits: Counter[_View], hints: Sequence[bytes]
) -> tuple[bytes, int]:
    """What to write where there is a choice, nothing where nothing may follow; and how many were tried for that.

    The first byte by rank. Where `idle` bytes before changed nothing, as in a string that has to be longer or in a
    number below its least, the first that changes something, if there is one; else in texts spaces, which take few
    tokens, and in forms the first, and later other bytes. Where it came by again and again, the first that leads
    elsewhere.
    """
    allowed = ranked(view.mask)
    many = len(allowed) > MANY
    tried = [hint for hint in hints if (idle if many else hint[0] in _NUMBER and hint[0] in allowed)]
    if (idle and len(allowed) <= FEW) or _now_and_then(idle) or _now_and_then(visits[view] // AGAIN):
        usable = (each for each in fewer(view.mask) if each < _ASCII or each in SYMBOLS or allowed[0] >= _ASCII)
        tried += [bytes([each]) for each in usable]
    for place_in_order, more in enumerate(tried, 1):
        ahead = _view_behind(place, more)
        if ahead is not None and (ahead != view if idle else ahead not in visits):
            return more, place_in_order
    if not idle or len(allowed) < 2:
        return allowed[:1], len(tried)
    if not many:
        return allowed[idle * idle // 8 % len(allowed) :][:1], len(tried)  # the first some times, then any
    fitting = [hint for hint in hints if idle <= len(hints) and place.validate_tokens(list(hint)) == len(hint)]
    return (*fitting[idle - 1 :], _SPACE if _SPACE in allowed else allowed[:1])[0], len(tried)


def _view_behind(place: "LLMatcher", more: bytes) -> _View | None:
    """What is seen behind `more`; None where it may not follow."""
    count = place.try_consume_tokens(list(more))
    view = _view(place) if count == len(more) else None
    check_works(place)
    place.rollback(count)
    return view


def _now_and_then(times: int) -> bool:
    """Whether `times` is 1, 2, 4, 8 ..."""
    return times > 0 and not times & (times - 1)


def shortest_ending(read: "LLMatcher", hints: Sequence[bytes] = (), *, steps: int, below: int | None = None) -> Search:
    """A search for the fewest bytes behind which the text may stop, fewer than `below`: `steps` texts are tried.

    Texts are followed up shortest first. Of those of one length that look alike ALIKE are, and bytes that change
    nothing come last; where nearly any byte may follow, few of them are tried. So what is found may be a little longer
    than the shortest, never wrong.
    """
    place, stands = read.deep_copy(), b""
    ways: list[tuple[int, int, bytes, _View]] = [(0, 0, b"", _view(place))]
    seen: dict[tuple[int, _View], int] = {}
    tried, whole = 0, True
    while ways:
        price, _, text, view = heapq.heappop(ways)
        if view.may_end:
            return Search(text, whole)
        if tried >= steps:
            return Search(None, False)
        _move(place, stands, text)
        stands = text
        several = fewer(view.mask)
        whole = whole and len(several) == len(ranked(view.mask))
        nexts: list[tuple[bytes, _View]] = []
        for more in (*([view.forced] if view.forced else (bytes([each]) for each in several)), *hints):
            tried += 1
            ahead = _view_behind(place, more)
            if ahead is not None:
                nexts.append((more, ahead))
        all_idle = all(ahead == view for _, ahead in nexts)
        for more, ahead in nexts:
            cost = price + len(more) + (IDLE if ahead == view and not all_idle else 0)
            seen[cost, ahead] = seen.get((cost, ahead), 0) + 1
            if seen[cost, ahead] > ALIKE:
                whole = False
            elif below is None or len(text) + len(more) < below:
                heapq.heappush(ways, (cost, tried + len(ways), text + more, ahead))
    return Search(None, whole)


def _move(place: "LLMatcher", stands: bytes, to: bytes) -> None:
    """Let a matcher that stands behind one text stand behind another, which it has read before."""
    same = 0
    for one, other in zip(stands, to, strict=False):
        if one != other:
            break
        same += 1
    place.rollback(len(stands) - same)
    place.consume_tokens(list(to[same:]))


def _view(place: "LLMatcher") -> _View:
    return _View(place.compute_bitmask(), forced_bytes(place), place.is_accepting())
