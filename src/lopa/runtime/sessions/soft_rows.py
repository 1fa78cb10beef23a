"""Soft embeddings that a session keeps between the forwards of a request, in contract 2, in host memory."""

from dataclasses import replace

import numpy as np

from lopa.runtime.contract import Rows, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch, PaddedBatch, padded_batch, with_canvas_inputs
from lopa.runtime.sessions.prefix_cache import CacheShape


class SoftRows(dict[int, Rows]):
    """Soft embeddings [m, H] of the rows that the last forward of each request sampled; empty in contract 1."""

    def __init__(self, shape: CacheShape, hidden_size: int) -> None:
        """Keep rows of `hidden_size` channels, in the type of cached rows."""
        super().__init__()
        self._dtype, self._hidden_size = shape.dtype, hidden_size

    def padded(self, batch: PackedBatch) -> PaddedBatch:
        """Return `batch` as padded windows, in contract 2 with the rows that it asks for."""
        padded, canvas = padded_batch(batch), batch.canvas
        if canvas is None:
            return padded
        soft = np.zeros((len(batch.input_ids), self._hidden_size), self._dtype)
        slots = np.repeat(batch.slots, batch.lengths)
        for slot, request in enumerate(batch.requests):
            rows = np.flatnonzero((slots == slot) & (canvas.soft_rows >= 0))
            if len(rows):
                soft[rows] = self[request][canvas.soft_rows[rows]]
        return with_canvas_inputs(padded, batch, soft)

    def keep(self, batch: PackedBatch, found: Statistics) -> Statistics:
        """Keep the rows among the statistics `found` of `batch`, and return the others."""
        if found.soft_embeddings is None:
            return found
        slots = np.repeat(batch.slots, batch.lengths)[batch.sampled_rows]
        for slot, request in enumerate(batch.requests):
            self[request] = found.soft_embeddings[slots == slot]
        return replace(found, soft_embeddings=None)
