"""Short endings of a text: bytes after which the grammar may stop. This module uses byte matchers only. The grammar's
state stores such an ending for every unmasked text, so that an answer can always end within its positions
(docs/how-to/structured-output.md).
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from lopa.runtime.grammar.byte_order import MAX_STRUCTURE_BYTES, SYMBOLS, rank_bytes, representative_bytes
from lopa.runtime.grammar.llguidance_library import DEAD_END, check_matcher, forced_bytes

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_TRIES = 2**13
"""Maximum bytes or forced runs tried on the direct way to an end."""
MAX_EXAMINED_BYTES = 12
"""Maximum number of allowed bytes, such as digits, that are all examined after a byte without effect. If there are
more, all are examined only occasionally."""
MAX_EQUAL_VIEWS = 2
"""Number of texts of equal length and view that a search extends. They may differ later."""
IDLE_COST = 6
"""Extra cost of a byte that does not change the view while others do, such as one more digit or character of a
string."""


CYCLE_VISITS = 4
"""Number of visits of a view after which it counts as a cycle."""
_SPACE, _ASCII, _NUMBER = b" ", 128, b"-0123456789"


class _View(NamedTuple):
    """Properties of a position in a text that a byte matcher shows."""

    mask: bytes
    """Bit mask of the bytes that may follow."""
    forced: bytes
    """Bytes that must follow."""
    may_end: bool


class Search(NamedTuple):
    """Result of a search."""

    found: bytes | None
    """Shortest ending found, or None. Skipped candidates may be shorter."""
    is_exhaustive: bool
    """True if all possible bytes were examined. Then a missing ending means that none exists."""


def likely_endings(ending: bytes, written: bytes) -> Iterator[bytes]:
    """Yield probable endings of a text that could end with `ending` and got `written` instead.

    If `ending` begins with `written`, its rest is the only candidate. Otherwise the candidates are the whole of
    `ending`, e.g. after one more character of a string, and its remainders after a common part.
    """
    if ending.startswith(written):
        yield ending[len(written) :]
        return
    yield ending
    yield from (
        ending[size:] for size in range(1, min(len(ending), len(written)) + 1) if written.endswith(ending[:size])
    )


def suffixes(ending: bytes) -> Iterator[bytes]:
    """Yield all suffixes of `ending`, the shortest first."""
    return (ending[start:] for start in range(len(ending), -1, -1))


def first_ending(read: "LLMatcher", texts: Iterable[bytes], fits: Callable[[bytes], bool]) -> bytes | None:
    """Return the first of `texts` after which the text of matcher `read` may stop and that `fits`, otherwise None."""
    tried = read.deep_copy()
    allowed = rank_bytes(_view(tried).mask)
    for text in texts:
        if text and text[0] not in allowed:
            continue
        count = tried.try_consume_tokens(list(text))
        check_matcher(tried)
        found = count == len(text) and tried.is_accepting()
        tried.rollback(count)
        if found and fits(text):
            return text
    return None


def straight_ending(read: "LLMatcher", hints: Sequence[bytes] = (), max: int = MAX_TRIES) -> bytes | None:
    """Return the text that closes all open structures as soon as possible, or None if that fails within `max` tries.

    `hints` are texts to try where many bytes may follow, because no single byte there brings the text nearer to its
    end. They are also tried as numbers where a number may begin.
    """
    position, text, idle = read.deep_copy(), b"", 0
    view, visits, tries = _view(position), Counter[_View](), 0
    while not view.may_end:
        visits[view] += 1
        more, looked_at = (view.forced, 0) if view.forced else _next(position, view, idle, visits, hints)
        tries += 1 + looked_at
        if not more or tries > max or position.try_consume_tokens(list(more)) < len(more):
            check_matcher(position)
            return None
        text, ahead = text + more, _view(position)
        idle, view = idle + 1 if ahead == view else 0, ahead
    return text


def _next(
    position: "LLMatcher", view: _View, idle: int, visits: Counter[_View], hints: Sequence[bytes]
) -> tuple[bytes, int]:
    """Return the bytes to write at a choice, empty if nothing may follow, and the number of candidates tried.

    Normally the first byte by rank is returned. After `idle` bytes without effect, as in a string or number that is too
    short, the first candidate that changes the view is returned. If there is none, strings get spaces, which take few
    tokens. Other forms get their first allowed byte, and later other bytes. In a cycle, the first candidate that leads
    to a new view is returned.
    """
    allowed = rank_bytes(view.mask)
    many = len(allowed) > MAX_STRUCTURE_BYTES
    tried = [hint for hint in hints if (idle if many else hint[0] in _NUMBER and hint[0] in allowed)]
    if (
        (idle and len(allowed) <= MAX_EXAMINED_BYTES)
        or _is_power_of_two(idle)
        or _is_power_of_two(visits[view] // CYCLE_VISITS)
    ):
        usable = (
            each for each in representative_bytes(view.mask) if each < _ASCII or each in SYMBOLS or allowed[0] >= _ASCII
        )
        tried += [bytes([each]) for each in usable]
    for place_in_order, more in enumerate(tried, 1):
        ahead = _view_after(position, more)
        if ahead is not None and (ahead != view if idle else ahead not in visits):
            return more, place_in_order
    if not idle or len(allowed) < 2:
        return allowed[:1], len(tried)
    if not many:
        return allowed[idle * idle // 8 % len(allowed) :][:1], len(tried)  # the first byte at first, then other bytes
    fitting = [hint for hint in hints if idle <= len(hints) and position.validate_tokens(list(hint)) == len(hint)]
    return (*fitting[idle - 1 :], _SPACE if _SPACE in allowed else allowed[:1])[0], len(tried)


def _view_after(position: "LLMatcher", more: bytes) -> _View | None:
    """Return the view after `more`, or None if it may not follow."""
    count = position.try_consume_tokens(list(more))
    view = _view(position) if count == len(more) else None
    check_matcher(position)
    position.rollback(count)
    return view


def _is_power_of_two(times: int) -> bool:
    """Return whether `times` is a power of two."""
    return times > 0 and not times & (times - 1)


def shortest_ending(read: "LLMatcher", hints: Sequence[bytes] = (), *, steps: int, below: int | None = None) -> Search:
    """Search for the shortest ending, with fewer than `below` bytes, among `steps` texts.

    Texts are extended shortest first. At most MAX_EQUAL_VIEWS texts with equal length and view are kept. Bytes without
    effect come last. Where nearly any byte may follow, only a few are tried. The result may be slightly longer than the
    shortest ending, but is never wrong.
    """
    position, current = read.deep_copy(), b""
    ways: list[tuple[int, int, bytes, _View]] = [(0, 0, b"", _view(position))]
    seen: dict[tuple[int, _View], int] = {}
    tried, is_exhaustive = 0, True
    while ways:
        price, _, text, view = heapq.heappop(ways)
        if view.may_end:
            return Search(text, is_exhaustive)
        if tried >= steps:
            return Search(None, False)
        _move(position, current, text)
        current = text
        several = representative_bytes(view.mask)
        is_exhaustive = is_exhaustive and len(several) == len(rank_bytes(view.mask))
        nexts: list[tuple[bytes, _View]] = []
        for more in (*([view.forced] if view.forced else (bytes([each]) for each in several)), *hints):
            tried += 1
            ahead = _view_after(position, more)
            if ahead is not None:
                nexts.append((more, ahead))
        all_idle = all(ahead == view for _, ahead in nexts)
        for more, ahead in nexts:
            cost = price + len(more) + (IDLE_COST if ahead == view and not all_idle else 0)
            seen[cost, ahead] = seen.get((cost, ahead), 0) + 1
            if seen[cost, ahead] > MAX_EQUAL_VIEWS:
                is_exhaustive = False
            elif below is None or len(text) + len(more) < below:
                heapq.heappush(ways, (cost, tried + len(ways), text + more, ahead))
    return Search(None, is_exhaustive)


def _move(position: "LLMatcher", current: bytes, to: bytes) -> None:
    """Move a matcher from one text to another that it has read before."""
    same = 0
    for one, other in zip(current, to, strict=False):
        if one != other:
            break
        same += 1
    position.rollback(len(current) - same)
    position.consume_tokens(list(to[same:]))


def _view(position: "LLMatcher") -> _View:
    view = _View(position.compute_bitmask(), forced_bytes(position), position.is_accepting())
    check_matcher(position, *DEAD_END)
    return view
