"""Rounds of one branch with known candidates, and the columns of recorded forwards."""

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.round import Scores
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.packed_rows import PackedRows
from lopa.runtime.strategy import Candidates, RoundView


def scores_of(branch: Branch, positions: Int64, candidates: Candidates) -> Scores:
    """Return the scores of a round of `branch` alone with sampled `positions` [n] and their `candidates` [n]."""
    count = len(positions)
    rows = RowStatistics(np.zeros((count, 8), np.int64), np.zeros((count, 8), np.float32), np.zeros(count, np.float32))
    packed = PackedRows(
        prefix=0,
        commit=0,
        lengths=(count,),
        branch_lengths=(count,),
        input_ids=positions,
        positions=positions,
        mask=np.eye(count, dtype=np.bool_).ravel(),
        sampled=(positions,),
        kept_columns=0,
        column_positions=positions,
        column_rows=np.arange(count),
    )
    view = RoundView((positions,), (candidates,), winner=0)
    return Scores((branch,), packed, rows, view, confidences=(0.0,), step=1)
