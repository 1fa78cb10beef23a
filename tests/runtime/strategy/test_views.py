"""Matching of positions between two branches."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lopa.runtime.strategy import match_positions

ascending = st.sets(st.integers(0, 20)).map(lambda found: np.array(sorted(found), np.int64))


@given(ascending, ascending)
def test_positions_are_found(known: np.ndarray, positions: np.ndarray) -> None:
    """A missing position has the index 0, even if no position is known."""
    found, places = match_positions(known, positions)
    assert found.tolist() == [each in known.tolist() for each in positions.tolist()]
    assert places.tolist() == [known.tolist().index(each) if each in known else 0 for each in positions.tolist()]
    np.testing.assert_array_equal(known[places[found]], positions[found])
