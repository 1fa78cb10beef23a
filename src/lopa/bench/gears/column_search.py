"""Which few columns of a table of costs serve all its rows at the least sum: the exact search of the gear planner.

Every row is served by the cheapest of the chosen columns (this is the p-median problem). Lagrange multipliers on the
rows give a bound below every choice; what the bound cannot rule out is decided by branching on columns. Knows no gears.
"""

import heapq
import itertools
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_TOLERANCE = 1e-9
"""Relative: a choice counts as best when none is better by more."""
_FIRST_STEPS, _LATER_STEPS = 400, 80
"""Of the multipliers, in the first node and in later ones, which start from their parent's."""
_PATIENCE = 12
"""Steps without a better bound after which steps become half as long."""
_MOST_COMPARISONS = 2e9
"""Entries compared to leave out columns that others make needless: some seconds."""


@dataclass(frozen=True)
class Choice:
    """The columns found, ascending, and the sum over all rows; no choice has a smaller sum than `least`."""

    columns: tuple[int, ...]
    total: float
    least: float


@dataclass(frozen=True, eq=False)
class _Node:
    """Part of the search: choices with all columns of `taken`, and otherwise columns of `free` only."""

    taken: Bools
    free: Bools
    multipliers: Floats
    bound: float

    def is_leaf(self, most: int) -> bool:
        """Whether one choice of it is at least as good as all others: `largest_choice`."""
        taken, free = np.count_nonzero(self.taken), np.count_nonzero(self.free)
        return bool(taken == most or taken + free <= most)

    def largest_choice(self, most: int) -> list[int]:
        """Of a leaf: all columns that it may have."""
        full = np.count_nonzero(self.taken) == most
        return np.flatnonzero(self.taken if full else self.taken | self.free).tolist()


def cheapest_columns(costs: Floats, most: int, *, seconds: float) -> Choice:
    """At most `most` columns (at least 1) of `costs` [rows, columns] with the least sum of row minima.

    Entries are at least 0 and may be infinite: that column cannot serve that row. The search ends after about
    `seconds`, then with what is best so far and the bound that is proven. Raises ValueError when no choice serves all
    rows.
    """
    end = time.perf_counter() + seconds
    few = costs.shape[0] * costs.shape[1] ** 2 <= _MOST_COMPARISONS
    kept = np.flatnonzero(~_dominated(costs)) if few else np.arange(costs.shape[1])
    costs = costs[:, kept]
    best = _improved(costs, _greedy(costs, most))
    upper = _total(costs, best)
    if not np.isfinite(upper):
        raise ValueError(f"no {most} columns that were tried serve all {len(costs)} rows")
    everything = np.ones(len(kept), np.bool_)
    # Its bound must be one that its multipliers give: what they rule out is worked out from both.
    root = _Node(~everything, everything, costs[:, best].min(axis=1), -np.inf)
    order = itertools.count()
    nodes = [(0.0, next(order), root)]
    while nodes and nodes[0][0] < upper * (1 - _TOLERANCE) and time.perf_counter() < end:
        _, _, node = heapq.heappop(nodes)
        steps = _FIRST_STEPS if node is root else _LATER_STEPS
        node, found = _bounded(costs, node, most, upper, steps)
        if _total(costs, found) < upper:
            best = _improved(costs, found)
            upper = _total(costs, best)
        if node.bound < upper * (1 - _TOLERANCE) and not node.is_leaf(most):
            for child in _halves(costs, node):
                heapq.heappush(nodes, (child.bound, next(order), child))
    least = max(min(upper, nodes[0][0]), 0.0) if nodes else upper
    if least >= upper * (1 - _TOLERANCE):
        least = upper
    return Choice(tuple(sorted(kept[best].tolist())), upper, least)


def _bounded(costs: Floats, node: _Node, most: int, upper: float, steps: int) -> tuple[_Node, list[int]]:
    """`node` with better multipliers and a higher bound, without columns that the bound rules out; and a choice."""
    taken, free, multipliers = node.taken, node.free, node.multipliers
    best_bound, best_multipliers, best_gains = node.bound, multipliers, _gains(costs, multipliers)
    found: list[int] = np.flatnonzero(taken).tolist()
    found_total = np.inf
    length, waited = 1.5, 0
    for _ in range(steps):
        gains = _gains(costs, multipliers)
        chosen = _chosen(gains, taken, free, most)
        bound = float(multipliers.sum() + gains[chosen].sum())
        total = _total(costs, chosen)
        if total < found_total:
            found, found_total = chosen, total
        if bound > best_bound:
            best_bound, best_multipliers, best_gains, waited = bound, multipliers, gains, 0
        else:
            waited += 1
            length, waited = (length / 2, 0) if waited == _PATIENCE else (length, waited)
        # How often each row is served by what is chosen: the multipliers rise where none does, fall where several do.
        slope = 1 - (costs[:, chosen] < multipliers[:, None]).sum(axis=1)
        if not slope.any() or best_bound >= upper * (1 - _TOLERANCE):
            break
        multipliers = np.maximum(
            multipliers + length * (min(upper, found_total) - bound) / (slope @ slope) * slope, 0.0
        )
    taken, free = _ruled_out(best_gains, best_bound, taken, free, most, upper)
    narrowed = _Node(taken, free, best_multipliers, best_bound)
    return narrowed, narrowed.largest_choice(most) if narrowed.is_leaf(most) else found


def _gains(costs: Floats, multipliers: Floats) -> Floats:
    """What opening each column adds to the bound: at most 0."""
    gains: Floats = np.minimum(costs - multipliers[:, None], 0.0).sum(axis=0)
    return gains


def _chosen(gains: Floats, taken: Bools, free: Bools, most: int) -> list[int]:
    """The taken columns and the free ones that lower the bound most."""
    room = most - int(np.count_nonzero(taken))
    candidates = np.flatnonzero(free & (gains < 0))
    best = candidates[np.argsort(gains[candidates], kind="stable")[:room]]
    return [*np.flatnonzero(taken).tolist(), *best.tolist()]


def _ruled_out(gains: Floats, bound: float, taken: Bools, free: Bools, most: int, upper: float) -> tuple[Bools, Bools]:
    """Columns without which, or with which, no choice is better than `upper` become taken, or are no longer free."""
    chosen = _chosen(gains, taken, free, most)
    inside = np.zeros_like(free)
    inside[chosen] = True
    inside &= free
    outside = free & ~inside
    full = len(chosen) == most
    # Another column in its place: the best outside for one that goes, the worst inside for one that comes.
    comes = float(min(gains[outside].min(initial=0.0), 0.0))
    goes = float(gains[inside].max(initial=-np.inf)) if full else 0.0
    target = upper * (1 - _TOLERANCE)
    needed = inside & (bound - gains + comes >= target)
    useless = outside & (bound + gains - goes >= target)
    return taken | needed, free & ~needed & ~useless


def _halves(costs: Floats, node: _Node) -> tuple[_Node, _Node]:
    """The choices of `node` with and without one more column, the one that lowers the bound most."""
    column = int(np.argmin(np.where(node.free, _gains(costs, node.multipliers), np.inf)))
    taken, free = node.taken.copy(), node.free.copy()
    taken[column], free[column] = True, False
    return _Node(taken, free, node.multipliers, node.bound), _Node(node.taken, free, node.multipliers, node.bound)


def _dominated(costs: Floats) -> Bools:
    """[columns]: another column is at least as good for every row; of equal ones the first stays."""
    columns = costs.shape[1]
    dominated = np.zeros(columns, np.bool_)
    for column in np.argsort(costs.sum(axis=0), kind="stable")[::-1]:
        others = ~dominated
        others[column] = False
        as_good = (costs[:, others] <= costs[:, [column]]).all(axis=0)
        equal = (costs[:, others] == costs[:, [column]]).all(axis=0)
        dominated[column] = bool((as_good & ~(equal & (np.flatnonzero(others) > column))).any())
    return dominated


def _greedy(costs: Floats, most: int) -> list[int]:
    """Columns one by one, each the best beside those before; first the one that serves the most rows."""
    unserved = (~np.isfinite(costs)).sum(axis=0)
    sums = np.where(np.isfinite(costs), costs, 0.0).sum(axis=0)
    chosen = [int(np.lexsort((sums, unserved))[0])]
    while len(chosen) < min(most, costs.shape[1]):
        served = costs[:, chosen].min(axis=1)
        better = np.minimum(served[:, None], costs)
        left = (~np.isfinite(better)).sum(axis=0)
        total = np.where(np.isfinite(better), better, 0.0).sum(axis=0)
        left[chosen], total[chosen] = len(costs) + 1, np.inf
        chosen.append(int(np.lexsort((total, left))[0]))
    return chosen


def _improved(costs: Floats, chosen: list[int]) -> list[int]:
    """`chosen` with one column exchanged for another as long as that helps."""
    chosen, total = list(chosen), _total(costs, chosen)
    improved = True
    while improved:
        improved = False
        for place in range(len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            served = costs[:, others].min(axis=1, initial=np.inf)
            totals = np.minimum(served[:, None], costs).sum(axis=0)
            best = int(np.argmin(totals))
            if totals[best] < total * (1 - _TOLERANCE):
                chosen[place], total, improved = best, float(totals[best]), True
    return chosen


def _total(costs: Floats, chosen: list[int]) -> float:
    return float(costs[:, chosen].min(axis=1, initial=np.inf).sum()) if chosen else float("inf")
