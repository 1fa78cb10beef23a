"""Whether all branches of a forward computed the same rows, so that none needs to be sent to another device.

Pure; knows arrays only, no session and no device.
"""

import numpy as np

from lopa.runtime.contract.forward import WindowBatch


def rows_are_shared(batch: WindowBatch, slot: int, count: int) -> bool:
    """True when the first `count` window rows of request `slot` (an index on the axis R) are the same on every branch.

    A row depends on the prefix, which all branches share, and on the rows that it sees, through all layers. So the rows
    are the same when they see nothing behind themselves, and when tokens, positions and mask up to there are equal on
    all branches: what the block-causal window makes of rows to be cached (docs/decoding.md). Another engine, or another
    number of branches in the forward, may still round them differently.
    """
    mask = batch.window_mask[slot, :, :count]
    if mask[:, :, count:].any():
        return False
    known = (batch.input_ids[slot, :, :count], batch.position_ids[slot, :, :count], mask)
    return all(np.array_equal(array, np.broadcast_to(array[:1], array.shape)) for array in known)
