"""Are the rows to be committed the same on every branch? Then each device has them, and nothing needs to be sent.

Pure; knows arrays only.
"""

import numpy as np

from lopa.runtime.contract import WindowBatch


def rows_are_shared(batch: WindowBatch, slot: int, count: int) -> bool:
    """True when the first `count` window rows of request number `slot` of `batch` are the same on all its branches.

    They are when they see none of the rows behind them, and have the same ids, positions and mask on every branch: a
    row's keys and values depend on nothing else but the prefix, which all branches share. So it is with the
    block-causal window; with the full window every row sees the undecided positions.
    """
    ids = batch.input_ids[slot, :, :count]
    positions = batch.position_ids[slot, :, :count]
    mask = batch.window_mask[slot, :, :count]
    return not mask[..., count:].any() and all(bool(np.all(rows == rows[:1])) for rows in (ids, positions, mask))
