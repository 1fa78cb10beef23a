"""Rounds of one branch with known candidates."""

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.contract.row_statistics import RowStatistics
from lopa.runtime.decoding.round import Scores
from lopa.runtime.state.branch import Branch
from lopa.runtime.state.windows import Windows
from lopa.runtime.strategy import Candidates, RoundView


def scores_of(branch: Branch, positions: Int64, candidates: Candidates) -> Scores:
    """Return the scores of a round of `branch` alone with sampled `positions` [n] and their `candidates` [n]."""
    count, none = len(positions), np.zeros(0, np.float32)
    rows = RowStatistics(
        np.zeros((1, count, 8), np.int64), np.zeros((1, count, 8), np.float32), np.zeros((1, count), np.float32)
    )
    windows = Windows(
        prefix=0,
        commit=0,
        input_ids=positions[None],
        positions=positions[None],
        mask=np.eye(count, dtype=np.bool_)[None],
        lengths=(count,),
        sampled=(positions,),
        logits_positions=positions[None],
        logits_index=np.arange(count)[None],
        from_kept_row=np.zeros((1, count), np.bool_),
        kept_columns=0,
    )
    view = RoundView((positions,), (candidates,), winner=0)
    return Scores((branch,), windows, rows, view, confidences=(0.0,), remaskable_probabilities=none, step=1)
