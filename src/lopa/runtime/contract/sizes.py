"""The dynamic axes of a forward in one record, whoever speaks of them: a forward, a bucket, a shape of an engine.

Knows numbers only.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.contract.forward import TILE, WindowBatch

Split = Annotated[int, Meta(ge=1, le=64)]
"""Requests or branches of a shape: what more of them ask for runs in parts."""
Window = Annotated[int, Meta(ge=1, le=2**16)]
PrefixRows = Annotated[int, Meta(ge=TILE, le=2**24, multiple_of=TILE)]


class Sizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """R, B, W, P and Q of the contract.

    The ranges are those of what a file says. They do not bind a forward: it may have more requests than any shape has.
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
    """Those of a forward over `prefix` rows of allocated cache."""
    requests, branches, window = batch.input_ids.shape
    return Sizes(requests, branches, window, prefix, wanted=batch.logits_index.shape[2])
