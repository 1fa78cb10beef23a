"""Sessions used with one forward after another, as most tests use them."""

from typing import Any

import numpy as np

from lopa.runtime.contract import Int64
from lopa.runtime.contract.packed_batch import PackedBatch
from lopa.runtime.sessions.sequential_session import SequentialSession


def sequential(session: Any) -> SequentialSession:
    """Return the calls of `session` whose commits mean the last forward: one object for each session."""
    if isinstance(session, SequentialSession):
        return session
    if "sequential" not in vars(session):
        session.sequential = SequentialSession(session)
    found: SequentialSession = session.sequential
    return found


def slots_of_sampled_rows(batch: PackedBatch) -> Int64:
    """Return the index of the request of each sampled row [M]."""
    return batch.slots[np.searchsorted(batch.starts, batch.sampled_rows, side="right") - 1]
