"""The exact search held against trying every choice."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lopa.bench.gears import column_search
from lopa.bench.gears.column_search import Floats, cheapest_columns


def best_by_trying(costs: Floats, most: int) -> float:
    choices = itertools.combinations(range(costs.shape[1]), min(most, costs.shape[1]))
    return min(float(costs[:, list(choice)].min(axis=1).sum()) for choice in choices)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Floats, int]:
    """Small tables: of few different numbers (many ties), of any, and with columns that cannot serve some rows."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows, columns = draw(st.integers(1, 14)), draw(st.integers(1, 10))
    costs = rng.integers(0, 12, (rows, columns)).astype(float) if draw(st.booleans()) else rng.random((rows, columns))
    if draw(st.booleans()):
        costs[rng.random((rows, columns)) < 0.4] = np.inf
        costs[:, rng.integers(columns)] = 3 * rng.random(rows)
    return costs, draw(st.integers(1, columns + 1))


@settings(max_examples=150, deadline=None)
@given(tables())
def test_no_choice_is_better(table: tuple[Floats, int]) -> None:
    costs, most = table
    found = cheapest_columns(costs, most, seconds=30)
    assert found.total == pytest.approx(best_by_trying(costs, most), rel=1e-9)
    assert found.least == found.total
    assert 1 <= len(set(found.columns)) == len(found.columns) <= most
    assert costs[:, list(found.columns)].min(axis=1).sum() == pytest.approx(found.total)


@settings(max_examples=150, deadline=None)
@given(tables())
def test_bounds_and_branching_alone_find_it_from_a_bad_start(table: tuple[Floats, int]) -> None:
    """Without the exchange of columns, which alone is nearly always right on small tables, and with poor bounds."""
    costs, most = table

    def first_that_serves(costs: Floats, most: int) -> list[int]:
        choices = itertools.combinations(range(costs.shape[1]), min(most, costs.shape[1]))
        return list(next(choice for choice in choices if np.isfinite(costs[:, list(choice)].min(axis=1)).all()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(column_search, "_greedy", first_that_serves)
        patch.setattr(column_search, "_improved", lambda _, chosen: chosen)
        patch.setattr(column_search, "_FIRST_STEPS", 2)
        patch.setattr(column_search, "_LATER_STEPS", 1)
        found = cheapest_columns(costs, most, seconds=30)
    assert found.total == pytest.approx(best_by_trying(costs, most), rel=1e-9)
    assert found.least == found.total


@settings(max_examples=300, deadline=None)
@given(tables(), st.integers(1, 25), st.floats(1.00001, 1.3))
def test_a_bound_is_below_every_choice_and_rules_out_no_good_one(
    table: tuple[Floats, int], steps: int, slack: float
) -> None:
    """After any number of steps, whatever is known to be reachable."""
    costs, most = table
    columns = costs.shape[1]
    most = min(most, columns)
    rng = np.random.default_rng(steps)
    everything = np.ones(columns, np.bool_)
    root = column_search._Node(~everything, everything, rng.random(len(costs)) * 2, -np.inf)
    upper = slack * best_by_trying(costs, most) + 1e-6
    node, _ = column_search._bounded(costs, root, most, upper, steps)
    for size in range(1, most + 1):
        for choice in itertools.combinations(range(columns), size):
            total = costs[:, list(choice)].min(axis=1).sum()
            assert total >= node.bound - 1e-9
            if total < upper * (1 - 1e-8):
                inside = np.isin(np.arange(columns), choice)
                assert (node.taken <= inside).all()
                assert (inside <= node.taken | node.free).all()


def test_a_larger_table_needs_branching_and_is_still_best() -> None:
    costs = np.random.default_rng(3).random((40, 22))
    found = cheapest_columns(costs, 5, seconds=60)
    assert found.least == found.total == pytest.approx(best_by_trying(costs, 5))


def test_without_time_the_bound_says_how_far_the_best_can_be() -> None:
    costs = np.random.default_rng(4).random((30, 18))
    best = best_by_trying(costs, 4)
    found = cheapest_columns(costs, 4, seconds=0)
    assert found.least <= best <= found.total
    assert found.least < found.total


def test_rows_that_no_choice_serves_are_an_error() -> None:
    costs = np.array([[1.0, np.inf], [np.inf, 1.0]])
    with pytest.raises(ValueError, match="serve all"):
        cheapest_columns(costs, 1, seconds=1)
    assert cheapest_columns(costs, 2, seconds=1).columns == (0, 1)
