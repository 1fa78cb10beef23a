"""Custom LoPA with its own branch confidence and lookaheads. Install it with pip install -e PATH."""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.options import DecodingParams
from lopa.runtime.strategy import STRATEGIES, BranchView, Option


def least_confident_mean(branch: BranchView, params: DecodingParams) -> float:
    """Return the mean confidence of the branch's least confident positions. With a share of 1 it is LoPA's own."""
    confidences = np.sort(branch.candidates.confidences)
    return float(confidences[: max(1, round(params.own["share"] * len(confidences)))].mean())


def far_apart(branch: BranchView, count: int, params: DecodingParams) -> Int64:
    """Return the most confident positions that are at least `distance` apart. With a distance of 1 it is LoPA's own."""
    chosen: list[int] = []
    for index in np.argsort(-branch.candidates.confidences, kind="stable"):
        if all(abs(branch.positions[index] - branch.positions[each]) >= params.own["distance"] for each in chosen):
            chosen.append(int(index))
    return np.array(chosen[:count], np.int64)


CAREFUL = replace(
    STRATEGIES["lopa"],
    name="careful",
    summary="LoPA that judges a branch by its least confident positions",
    branch_confidence=least_confident_mean,
    lookaheads=far_apart,
    options=(
        Option(name="share", help="Share of the positions that judge a branch.", default=0.5, above=True, max=1.0),
        Option(name="distance", help="Minimum distance of lookaheads, in positions.", default=1, min=1, max=64),
    ),
)
