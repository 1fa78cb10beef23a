"""Dynamic axes of a forward in one record, for forwards, shape buckets and engine shapes alike."""

from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.contract import TILE, WindowBatch

Split = Annotated[int, Meta(ge=1, le=64)]
"""Number of requests or branches of a shape. Larger batches run in parts."""
Window = Annotated[int, Meta(ge=1, le=2**16)]
PrefixRows = Annotated[int, Meta(ge=TILE, le=2**24, multiple_of=TILE)]


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """R, B, W, P and Q of the contract.

    The ranges apply to values read from files. A forward may have more requests than any shape.
    """

    requests: Split
    branches: Split
    window: Window
    prefix: PrefixRows
    """Rows of allocated cache."""
    wanted: Window

    @property
    def rows(self) -> int:
        """Window rows of all branches of all requests."""
        return self.requests * self.branches * self.window


def sizes_of_batch(batch: WindowBatch, prefix: int) -> Sizes:
    """Return the sizes of a forward over `prefix` rows of allocated cache."""
    requests, branches, window = batch.input_ids.shape
    return Sizes(requests, branches, window, prefix, wanted=batch.logits_index.shape[2])
