"""How often an answer can be right when several of its items are decided in one forward. Pure; closed recursions.

A forward gives every open item a distribution of its own. Even when each is exact, given all that was decided before,
items decided together are independent of each other, and the right answers may not be: that is the limit that
ParallelBench (arXiv 2510.04767) derives for any model. Here it is said in right answers in place of bits: all right
answers are equally probable, and of all ways to decide n items in at most `forwards` forwards, which and how many in
each depending on what was decided, the best is taken.

Two deciders: one that draws from the distributions ("drawn"), and one that takes the most probable item, drawing where
several are ("greedy"). Items are decided whole: for one of several tokens this is the limit only where its first token
tells it from all others.

Tasks with one right answer have no limit below 1, and are not here.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations
from math import prod

Decided = Callable[[Sequence[int]], tuple[Fraction, ...]]
"""From how many right answers have each of an item's values to the probabilities with which it is decided so."""
_ONE, _NONE = Fraction(1), Fraction(0)


def drawn(counts: Sequence[int]) -> tuple[Fraction, ...]:
    """Values with the probabilities that they have."""
    return tuple(Fraction(count, sum(counts)) for count in counts)


def greedy(counts: Sequence[int]) -> tuple[Fraction, ...]:
    """The most probable value; of several each as often as the others."""
    best = [count == max(counts) for count in counts]
    return tuple(Fraction(each, sum(best)) for each in best)


@cache
def shuffle_limit(items: int, forwards: int) -> Fraction:
    """Any order of `items` different items; drawn and greedy are the same here, since all values are as probable.

    Of m items that are left k are decided: they differ in m! / (m - k)! of m^k cases.
    """
    if not items:
        return _ONE
    if not forwards:
        return _NONE
    best, differing = _NONE, _ONE
    for number in range(1, items + 1):
        differing *= Fraction(items - number + 1, items)
        best = max(best, differing * shuffle_limit(items - number, forwards - 1))
    return best


@cache
def replace_limit(items: int, forwards: int, decided: Decided) -> Fraction:
    """Return the limit where one of `items` items, no matter which, is another now.

    Each open one is it in 1 of m right answers. Of k decided together one is, and then all others follow; or none is,
    and it is among the m - k.
    """
    if not items or not forwards:
        return _NONE
    old, new = decided((items - 1, 1))
    best = _NONE
    # In the last forward all open items are decided.
    for number in range(1 if forwards > 1 else items, items + 1):
        found = number * new * old ** (number - 1)
        best = max(best, found + old**number * replace_limit(items - number, forwards - 1, decided))
    return best


def insert_limit(items: int, forwards: int, decided: Decided) -> Fraction:
    """Another item comes between `items` items, no matter where.

    Where it may be at s places, the items at these are open. At the i-th, counted from 0, stands what stood there
    before, in the s - 1 - i right answers where the new one comes later; the new one, in 1; or what stood in front of
    that, in i.
    """
    return _place_limit(items + 1, forwards, decided, gone=False)


def remove_limit(items: int, forwards: int, decided: Decided) -> Fraction:
    """One of `items` items, no matter which, is gone.

    Where it may be one of s, s - 1 items are open: the i-th is as before in the s - 1 - i right answers where a later
    one is gone, and its successor in the other i + 1.
    """
    return _place_limit(items, forwards, decided, gone=True)


@cache
def _place_limit(places: int, forwards: int, decided: Decided, *, gone: bool) -> Fraction:
    """Of `places` that the change may be at: every choice of open items, and every place that they leave possible."""
    opened = places - gone
    if not opened:
        return _ONE
    if not forwards:
        return _NONE
    sizes = [opened] if forwards == 1 else range(1, opened + 1)
    return max(
        _after(chosen, places, forwards, decided, gone) for n in sizes for chosen in combinations(range(opened), n)
    )


def _after(chosen: tuple[int, ...], places: int, forwards: int, decided: Decided, gone: bool) -> Fraction:
    """The chance of a right answer when the items `chosen` are decided now, and the best is done with the others."""
    later, here, earlier = [], [], []
    for i in chosen:
        counts = (places - 1 - i, i + 1) if gone else (places - 1 - i, 1, i)
        probabilities = decided(counts)
        later.append(probabilities[0])
        earlier.append(probabilities[-1])
        here.append(_NONE if gone else probabilities[1])
    total = _NONE
    edges = [-1, *chosen, places - gone]
    for number in range(len(chosen) + 1):
        # The change is between the chosen items number - 1 and number.
        between = edges[number + 1] - edges[number] - (not gone)
        consistent = prod(later[:number]) * prod(earlier[number:])
        if between and consistent:
            total += consistent * _place_limit(between, forwards - 1, decided, gone=gone)
        if number < len(chosen) and here[number]:
            total += prod(later[:number]) * here[number] * prod(earlier[number + 1 :])
    return total


_LIMITS: Mapping[str, Callable[[int, int, Decided], Fraction]] = {
    "shuffle": lambda items, forwards, _: shuffle_limit(items, forwards),
    "replace_random": replace_limit,
    "insert_random": insert_limit,
    "remove_random": remove_limit,
}
"""By the name of the task in lopa.bench.evaluation.waiting_lines."""


def limits_of_task(task: str, items: int, decided: Decided) -> tuple[float, ...]:
    """The chance of a right answer with 1, 2, .. forwards, up to the number from which nothing stands in the way."""
    limit = _LIMITS.get(task)
    if limit is None:
        return (1.0,)
    found: list[float] = []
    for forwards in range(1, items + 2):  # one item each is enough, and one may have come in
        found.append(float(limit(items, forwards, decided)))
        if found[-1] == 1:
            break
    return tuple(found)
