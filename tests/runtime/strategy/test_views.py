"""How a stage finds positions of one branch among those of another."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lopa.runtime.strategy import match_positions

positions = st.sets(st.integers(0, 20)).map(lambda found: np.array(sorted(found), np.int64))


@given(positions, positions)
def test_positions_are_found_where_they_stand(known: np.ndarray, wanted: np.ndarray) -> None:
    """One that is not there has the place 0, also where nothing is known."""
    found, places = match_positions(known, wanted)
    assert found.tolist() == [each in known.tolist() for each in wanted.tolist()]
    assert places.tolist() == [known.tolist().index(each) if each in known else 0 for each in wanted.tolist()]
    np.testing.assert_array_equal(known[places[found]], wanted[found])
