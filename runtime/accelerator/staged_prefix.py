"""A copy of committed rows in the shape of a gear, kept from forward to forward. Knows arrays only, no engine."""

import numpy as np

from lopa.runtime.sessions.prefix_cache import CacheShape, Prefix


class StagedPrefix:
    """The prefix of some requests, padded.

    While it comes from the same memory, only newly committed rows are copied.
    """

    def __init__(self, shape: CacheShape, requests: int, rows: int) -> None:
        self._staged = shape.zeros(requests, rows)
        self._source: Prefix | None = None
        self._copied = [0] * requests

    def staged(self, source: Prefix, requests: slice) -> Prefix:
        """The rows of some requests of `source`, always in the same memory; zeros and false elsewhere.

        A prefix only ever grows (Prefix), so rows that were copied from it before are still right.
        """
        lengths = np.count_nonzero(source.mask[requests], axis=1).tolist()
        same = source is self._source
        for slot, copied in enumerate(self._copied):
            length = lengths[slot] if slot < len(lengths) else 0
            start = copied if same else 0
            self._staged.block[:, slot, :, length:copied] = 0
            if start < length:
                self._staged.block[:, slot, :, start:length] = source.block[:, requests][:, slot, :, start:length]
            self._staged.mask[slot] = np.arange(self._staged.mask.shape[1]) < length
            self._copied[slot] = length
        self._source = source
        return self._staged
