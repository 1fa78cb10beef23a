"""The choice of torch.topk among equal values, which published rules depend on (docs/reference/algorithm.md, section
12).

SDAR's rules select the n best positions of a block even if fewer than n are masked. Unmasked positions have a
confidence of minus infinity, and the published code overwrites the unmasked positions that torch.topk returns. On a
CPU, torch.topk partitions (value, index) pairs in the order of their indices. It uses Hoare's find with the median of
three as pivot.
"""

import numpy as np

from lopa.runtime.contract import Floats, Int64

_SMALL = 3
"""Length up to which values are sorted by insertion."""


def indices_of_topk(values: Floats, count: int) -> Int64:
    """Return the indices of the `count` largest of `values` [n], unordered, with the ties of torch.topk on a CPU."""
    order = list(range(len(values)))
    if not 0 < count < len(order):
        return np.array(order[:count], np.int64)
    first, last, nth = 0, len(order), count - 1
    while last - first > _SMALL:
        cut = _partition(values, order, first, last)
        first, last = (cut, last) if cut <= nth else (first, cut)
    order[first:last] = sorted(order[first:last], key=lambda index: -values[index])  # stable, like insertion sort
    return np.array(order[:count], np.int64)


def _partition(values: Floats, order: list[int], first: int, last: int) -> int:
    """Partition order[first:last] around the median of three of its values. Return the start of the second part."""

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
