"""One forward cut into parts: branches dealt over devices, or pieces that follow each other through a pipeline.

Also whether all branches computed the same rows, so that none need travel from part to part. `WindowBatch.part` cuts,
`Statistics.joined` puts together. Pure; knows arrays only, no session and no device.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lopa.runtime.contract.forward import WindowBatch


class Part(NamedTuple):
    """Some branches of some requests: the arguments of `WindowBatch.part`."""

    requests: slice
    branches: slice


def shares_of_branches(branches: int, devices: int) -> tuple[slice, ...]:
    """For each device the branches that it computes, in order; sizes differ by one at most, and the first is a largest.

    Where devices are more than branches, some get an empty slice. Raises ValueError for less than one of either.
    """
    if branches < 1 or devices < 1:
        raise ValueError(f"received {branches} branches and {devices} devices, expected at least one of each")
    edges = [-(-branches * device // devices) for device in range(devices + 1)]
    return tuple(slice(first, last) for first, last in pairwise(edges))


def micro_batches(requests: int, branches: int, wanted: int) -> list[Part]:
    """`wanted` parts as even as can be, or somewhat more: whole requests, or where these are too few, their branches.

    Fewer where there are fewer windows. Request by request, the branches of each in order.
    """
    groups = shares_of_branches(requests, min(requests, wanted))
    cuts = shares_of_branches(branches, min(branches, -(-wanted // len(groups))))
    return [Part(group, cut) for group in groups for cut in cuts]


def parts_across(parts: Sequence[Part]) -> int:
    """How many parts have the branches of the same requests, for `Statistics.joined`; `parts` as `micro_batches`."""
    return sum(part.requests == parts[0].requests for part in parts)


def rows_are_shared(batch: WindowBatch, slot: int, count: int) -> bool:
    """True when the first `count` window rows of request `slot` (an index on the axis R) are the same on every branch.

    A row depends on the prefix, which all branches share, and on the rows that it sees, through all layers. So the rows
    are the same when they see nothing behind themselves, and when tokens, positions and mask up to there are equal on
    all branches: what the block-causal window makes of rows to be cached (docs/concepts/decoding.md). Another device,
    or another number of branches in the forward, may still round them differently.
    """
    mask = batch.window_mask[slot, :, :count]
    if mask[:, :, count:].any():
        return False
    known = (batch.input_ids[slot, :, :count], batch.position_ids[slot, :, :count], mask)
    return all(np.array_equal(array, np.broadcast_to(array[:1], array.shape)) for array in known)
