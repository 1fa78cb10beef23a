"""Which of equal values torch.topk takes, for published rules that depend on it (docs/reference/algorithm.md, section
12).

SDAR's rules ask for the n best of a block where fewer than n are undecided; the rest have a confidence of minus
infinity, and the published code overwrites those that torch.topk happens to return. On a CPU that is what selection by
partitioning (Hoare's find, median of three) leaves in front, on pairs in the order of their indices. Pure.
"""

import numpy as np

from lopa.runtime.contract import Floats, Int64

_SMALL = 3
"""So many are sorted by insertion."""


def indices_of_topk(values: Floats, count: int) -> Int64:
    """Indices of the `count` largest of `values` [n], as torch.topk on a CPU chooses among equal ones; unordered."""
    order = list(range(len(values)))
    if not 0 < count < len(order):
        return np.array(order[:count], np.int64)
    first, last, nth = 0, len(order), count - 1
    while last - first > _SMALL:
        cut = _partitioned(values, order, first, last)
        first, last = (cut, last) if cut <= nth else (first, cut)
    order[first:last] = sorted(order[first:last], key=lambda index: -values[index])  # stable, as insertion is
    return np.array(order[:count], np.int64)


def _partitioned(values: Floats, order: list[int], first: int, last: int) -> int:
    """Part order[first:last] around the median of three of its values; the place where the second part begins."""

    def before(one: int, other: int) -> bool:
        return bool(values[order[one]] > values[order[other]])

    def swap(one: int, other: int) -> None:
        order[one], order[other] = order[other], order[one]

    one, middle, three = first + 1, first + (last - first) // 2, last - 1
    if before(one, middle):
        median = middle if before(middle, three) else three if before(one, three) else one
    else:
        median = one if before(one, three) else three if before(middle, three) else middle
    swap(first, median)
    low, high = first + 1, last
    while True:
        while before(low, first):
            low += 1
        high -= 1
        while before(first, high):
            high -= 1
        if low >= high:
            return low
        swap(low, high)
        low += 1
