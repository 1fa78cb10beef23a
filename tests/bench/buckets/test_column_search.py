"""The search compared with an exhaustive one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.bench.buckets.column_search import Floats, cheapest_columns


def best_by_search(costs: Floats, max_columns: int) -> float:
    choices = itertools.combinations(range(costs.shape[1]), min(max_columns, costs.shape[1]))
    return min(float(costs[:, list(choice)].min(axis=1).sum()) for choice in choices)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Floats, int]:
    """Draw a small table: with many ties, with arbitrary numbers, or with columns that cannot serve some rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(st.integers(1, 14)), draw(st.integers(1, 10))
    costs = rng.integers(0, 12, (rows, columns)).astype(float) if draw(st.booleans()) else rng.random((rows, columns))
    if draw(st.booleans()):
        costs[rng.random((rows, columns)) < 0.4] = np.inf
        costs[:, rng.integers(columns)] = 3 * rng.random(rows)
    return costs, draw(st.integers(1, columns + 1))


@settings(max_examples=60, deadline=None)
@given(tables())
def test_no_selection_is_better(table: tuple[Floats, int]) -> None:
    costs, max_columns = table
    found, best = cheapest_columns(costs, max_columns, seconds=30), best_by_search(costs, max_columns)
    assert found.total == pytest.approx(best, rel=0.01)
    assert found.lower_bound <= best * (1 + 1e-9)
    assert 1 <= len(set(found.columns)) == len(found.columns) <= max_columns
    assert costs[:, list(found.columns)].min(axis=1).sum() == pytest.approx(found.total)


@pytest.mark.parametrize("seed", range(4))
def test_a_larger_table_needs_more_than_one_start(seed: int) -> None:
    costs = np.random.default_rng(seed).random((40, 22))
    found, best = cheapest_columns(costs, 5, seconds=60), best_by_search(costs, 5)
    assert found.total == pytest.approx(best, rel=1e-9)
    assert 0.8 * best < found.lower_bound <= best


def test_the_bound_holds_without_time_to_search() -> None:
    costs = np.random.default_rng(4).random((30, 18))
    best = best_by_search(costs, 4)
    found = cheapest_columns(costs, 4, seconds=0)
    assert found.lower_bound <= best <= found.total
    assert found.lower_bound < found.total


def test_unservable_rows_are_an_error() -> None:
    costs = np.array([[1.0, np.inf], [np.inf, 1.0]])
    with pytest.raises(ValueError, match="serves all"):
        cheapest_columns(costs, 1, seconds=1)
    assert cheapest_columns(costs, 2, seconds=1).columns == (0, 1)
