"""Which few columns of a table of costs serve all its rows at the least sum (the p-median problem). Knows no buckets.

Every row is served by the cheapest of the chosen columns. Lagrange multipliers on the rows give a bound below every
choice; the columns that the bound is made of are good places to start an exchange of columns from.
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TOLERANCE = 1e-9
"""Relative: a choice counts as best when none is better by more."""
_STEPS = 300
"""Of the multipliers."""
_PATIENCE = 12
"""Steps without a better bound after which steps become half as long."""
_STARTS = 60
"""Different choices from which columns are exchanged."""


@dataclass(frozen=True)
class Choice:
    """The columns found, ascending, and the sum over all rows; no choice has a smaller sum than `least`."""

    columns: tuple[int, ...]
    total: float
    min: float


def cheapest_columns(costs: Floats, max_columns: int, *, seconds: float) -> Choice:
    """At most `max_columns` columns (at least 1) of `costs` [rows, columns] with about the least sum of row minima.

    Entries are at least 0 and may be infinite: that column cannot serve that row. The search ends after about
    `seconds`, then with what is best so far and the bound that is proven. Raises ValueError when no choice that was
    tried serves all rows.
    """
    end = time.perf_counter() + seconds
    best = _improved(costs, _greedy(costs, max_columns))
    total = _total(costs, best)
    if not np.isfinite(total):
        raise ValueError(f"no {max_columns} columns that were tried serve all {len(costs)} rows")
    multipliers: Floats = costs[:, best].min(axis=1)
    tried = {frozenset(best)}
    proven, length, waited = 0.0, 1.5, 0
    for _ in range(_STEPS):
        if time.perf_counter() > end:
            break
        gains = np.minimum(costs - multipliers[:, None], 0.0).sum(axis=0)
        chosen = np.argsort(gains, kind="stable")[:max_columns].tolist()
        bound = float(multipliers.sum() + gains[chosen].sum())
        if len(tried) < _STARTS and frozenset(chosen) not in tried:
            tried.add(frozenset(chosen))
            found = _improved(costs, chosen)
            if _total(costs, found) < total:
                best, total = found, _total(costs, found)
        waited = 0 if bound > proven else waited + 1
        proven = max(proven, bound)
        if waited == _PATIENCE:
            length, waited = length / 2, 0
        # How often each row is served by what is chosen: the multipliers rise where none does, fall where several do.
        slope = 1 - (costs[:, chosen] < multipliers[:, None]).sum(axis=1)
        if not slope.any() or proven >= total * (1 - _TOLERANCE):
            break
        multipliers = np.maximum(multipliers + length * (total - bound) / (slope @ slope) * slope, 0.0)
    if proven >= total * (1 - _TOLERANCE):
        proven = total
    for column in sorted(set(best)):
        others = [other for other in set(best) if other != column]
        if _total(costs, others) <= total:
            best = others
    return Choice(tuple(sorted(set(best))), total, proven)


def _greedy(costs: Floats, max_columns: int) -> list[int]:
    """Columns one by one, each the best beside those before; first the one that serves the most rows."""
    unserved = (~np.isfinite(costs)).sum(axis=0)
    sums = np.where(np.isfinite(costs), costs, 0.0).sum(axis=0)
    chosen = [int(np.lexsort((sums, unserved))[0])]
    while len(chosen) < min(max_columns, costs.shape[1]):
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
