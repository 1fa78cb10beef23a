"""Select a few columns of a cost table that serve all rows at minimum total cost (p-median problem).

The cheapest selected column serves each row. Lagrange multipliers of the rows give a lower bound for every selection.
The columns that give the bound are good starting points of a local search.
"""

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_TOLERANCE = 1e-9
"""Relative difference below which two selections are equally good."""
_STEPS = 300
"""Maximum number of updates of the multipliers."""
_PATIENCE = 12
"""Number of updates without a better bound before the step length is halved."""
_STARTS = 60
"""Maximum number of local searches."""


@dataclass(frozen=True)
class ColumnSelection:
    """Selected columns in ascending order, and the total cost of all rows.

    `lower_bound` is a proven bound of the total.
    """

    columns: tuple[int, ...]
    total: float
    lower_bound: float


def cheapest_columns(costs: Floats, max_columns: int, *, seconds: float) -> ColumnSelection:
    """Return at most `max_columns` columns (at least 1) of `costs` [rows, columns] with nearly minimal sum of minima.

    Entries are non-negative. An infinite entry means that the column cannot serve the row. The search stops after about
    `seconds` with the best selection so far and the proven bound. Raises ValueError if no tested selection serves all
    rows.
    """
    end = time.perf_counter() + seconds
    best = _improve(costs, _greedy(costs, max_columns))
    total = _total(costs, best)
    if not np.isfinite(total):
        raise ValueError(f"no tested selection of {max_columns} columns serves all {len(costs)} rows")
    multipliers: Floats = costs[:, best].min(axis=1)
    tried = {frozenset(best)}
    lower_bound, length, stalled = 0.0, 1.5, 0
    for _ in range(_STEPS):
        if time.perf_counter() > end:
            break
        gains = np.minimum(costs - multipliers[:, None], 0.0).sum(axis=0)
        chosen = np.argsort(gains, kind="stable")[:max_columns].tolist()
        bound = float(multipliers.sum() + gains[chosen].sum())
        if len(tried) < _STARTS and frozenset(chosen) not in tried:
            tried.add(frozenset(chosen))
            found = _improve(costs, chosen)
            if _total(costs, found) < total:
                best, total = found, _total(costs, found)
        stalled = 0 if bound > lower_bound else stalled + 1
        lower_bound = max(lower_bound, bound)
        if stalled == _PATIENCE:
            length, stalled = length / 2, 0
        # Subgradient: a multiplier rises if no chosen column serves its row, and falls if several do.
        slope = 1 - (costs[:, chosen] < multipliers[:, None]).sum(axis=1)
        if not slope.any() or lower_bound >= total * (1 - _TOLERANCE):
            break
        multipliers = np.maximum(multipliers + length * (total - bound) / (slope @ slope) * slope, 0.0)
    if lower_bound >= total * (1 - _TOLERANCE):
        lower_bound = total
    for column in sorted(set(best)):
        others = [other for other in set(best) if other != column]
        if _total(costs, others) <= total:
            best = others
    return ColumnSelection(tuple(sorted(set(best))), total, lower_bound)


def _greedy(costs: Floats, max_columns: int) -> list[int]:
    """Return columns added one by one, each the best addition. The first serves the most rows."""
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


def _improve(costs: Floats, chosen: list[int]) -> list[int]:
    """Return `chosen` improved by exchanging single columns until no exchange helps."""
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
