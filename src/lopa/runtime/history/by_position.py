"""Rows that an earlier step kept, found again by their positions. Pure."""

import numpy as np

from lopa.runtime.contract import Bool, Int64


def found_again(known: Int64, wanted: Int64) -> tuple[Bool, Int64]:
    """[n]: which of the positions `wanted` [n] are among `known` [m], both ascending; and their places there (0 for
    others)."""
    places = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    found: Bool = known[places] == wanted if len(known) else np.zeros(len(wanted), np.bool_)
    return found, np.where(found, places, 0)
