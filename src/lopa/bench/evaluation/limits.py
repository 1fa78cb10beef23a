"""Exact upper bounds of the accuracy when several items are unmasked in one forward.

A forward gives every masked item its own distribution. Even exact distributions treat items that are unmasked together
as independent, while the correct answers may depend on each other. ParallelBench (arXiv 2510.04767) derives this bound
for any model. Here the bound is an accuracy instead of a number of bits, and all correct answers are equally probable.
The bound is the best over all schedules that unmask n items in at most `forwards` forwards. A schedule may choose the
next items and their number from those unmasked so far.

`drawn` samples from the distributions. `greedy` takes the most probable value and breaks ties at random. An item is
unmasked as a whole. For items of several tokens the bound is exact only if the first token identifies the item.

A task with one correct answer has no bound below 1 and is not listed here.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import combinations
from math import prod

Sampler = Callable[[Sequence[int]], tuple[Fraction, ...]]
"""Function from the number of correct answers per value of an item to the probability of unmasking each value."""
_ONE, _NONE = Fraction(1), Fraction(0)


def drawn(counts: Sequence[int]) -> tuple[Fraction, ...]:
    """Return the probability of each value under sampling."""
    return tuple(Fraction(count, sum(counts)) for count in counts)


def greedy(counts: Sequence[int]) -> tuple[Fraction, ...]:
    """Return the probability of each value under greedy decoding. Ties are broken at random."""
    best = [count == max(counts) for count in counts]
    return tuple(Fraction(each, sum(best)) for each in best)


@cache
def shuffle_limit(items: int, forwards: int) -> Fraction:
    """Return the bound for writing `items` different items in any order.

    Sampling and greedy decoding agree, since all values are equally probable. If k of m remaining items are unmasked,
    they differ in m! / (m - k)! of m^k cases.
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
def replace_limit(items: int, forwards: int, sampler: Sampler) -> Fraction:
    """Return the bound for replacing an arbitrary one of `items` items.

    Each masked item is the new one in 1 of m correct answers. If one of k unmasked items is the new one, all others are
    determined. Otherwise it is among the remaining m - k.
    """
    if not items or not forwards:
        return _NONE
    old, new = sampler((items - 1, 1))
    best = _NONE
    # The last forward unmasks all masked items.
    for number in range(1 if forwards > 1 else items, items + 1):
        found = number * new * old ** (number - 1)
        best = max(best, found + old**number * replace_limit(items - number, forwards - 1, sampler))
    return best


def insert_limit(items: int, forwards: int, sampler: Sampler) -> Fraction:
    """Return the bound for inserting an item at an arbitrary place among `items` items.

    If s places remain, the items at these places are masked. The i-th of them, counted from 0, has three possible
    values. It keeps its value in s - 1 - i correct answers, is the new item in 1, and is its predecessor in i.
    """
    return _bound_of_places(items + 1, forwards, sampler, removing=False)


def remove_limit(items: int, forwards: int, sampler: Sampler) -> Fraction:
    """Return the bound for removing an arbitrary one of `items` items.

    If s candidates remain, s - 1 items are masked. The i-th of them keeps its value in s - 1 - i correct answers and is
    its successor in the other i + 1.
    """
    return _bound_of_places(items, forwards, sampler, removing=True)


@cache
def _bound_of_places(places: int, forwards: int, sampler: Sampler, *, removing: bool) -> Fraction:
    """Return the bound when the change is at one of `places`, maximized over the items to unmask next."""
    masked = places - removing
    if not masked:
        return _ONE
    if not forwards:
        return _NONE
    sizes = [masked] if forwards == 1 else range(1, masked + 1)
    return max(
        _bound_after(chosen, places, forwards, sampler, removing)
        for n in sizes
        for chosen in combinations(range(masked), n)
    )


def _bound_after(chosen: tuple[int, ...], places: int, forwards: int, sampler: Sampler, removing: bool) -> Fraction:
    """Return the bound when the items `chosen` are unmasked now and the others optimally."""
    later, here, earlier = [], [], []
    for i in chosen:
        counts = (places - 1 - i, i + 1) if removing else (places - 1 - i, 1, i)
        probabilities = sampler(counts)
        later.append(probabilities[0])
        earlier.append(probabilities[-1])
        here.append(_NONE if removing else probabilities[1])
    total = _NONE
    edges = [-1, *chosen, places - removing]
    for number in range(len(chosen) + 1):
        # The change is between the chosen items number - 1 and number.
        between = edges[number + 1] - edges[number] - (not removing)
        consistent = prod(later[:number]) * prod(earlier[number:])
        if between and consistent:
            total += consistent * _bound_of_places(between, forwards - 1, sampler, removing=removing)
        if number < len(chosen) and here[number]:
            total += prod(later[:number]) * here[number] * prod(earlier[number + 1 :])
    return total


_LIMITS: Mapping[str, Callable[[int, int, Sampler], Fraction]] = {
    "shuffle": lambda items, forwards, _: shuffle_limit(items, forwards),
    "replace_random": replace_limit,
    "insert_random": insert_limit,
    "remove_random": remove_limit,
}
"""Bounds by task name of lopa.bench.evaluation.waiting_lines."""


def limits_of_task(task: str, items: int, sampler: Sampler) -> tuple[float, ...]:
    """Return the bounds for 1, 2, ... forwards, up to the first one that is 1."""
    limit = _LIMITS.get(task)
    if limit is None:
        return (1.0,)
    bounds: list[float] = []
    for forwards in range(1, items + 2):  # one item per forward suffices; an insertion adds an item
        bounds.append(float(limit(items, forwards, sampler)))
        if bounds[-1] == 1:
            break
    return tuple(bounds)
