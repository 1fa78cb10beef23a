"""Which branch wins a round (docs/lopa.md, section 6 E and F). Pure."""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract import Float32

DECIDED_BRANCH_CONFIDENCE = 1.0
"""Of a branch with nothing left to decide: beats every other."""


def branch_confidence(confidences: Float32) -> float:
    """Mean confidence over all undecided positions of a branch, before any is filled; `confidences` [positions]."""
    if not len(confidences):
        return DECIDED_BRANCH_CONFIDENCE
    return float(confidences.mean())


def winner_of(confidences: Sequence[float]) -> int:
    """Index of the most confident branch; of equal ones the first."""
    return int(np.argmax(confidences))
