"""Splitting of a forward into parts: branches over devices, or micro-batches for a pipeline.

This module also detects rows that are equal on all branches, so that they need not be copied between parts.
`WindowBatch.part` slices a batch and `Statistics.joined` concatenates the results. This module uses arrays only, no
session and no device.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lopa.runtime.contract.forward import WindowBatch


class Part(NamedTuple):
    """Some branches of some requests, as the arguments of `WindowBatch.part`."""

    requests: slice
    branches: slice


def split_branches(branches: int, devices: int) -> tuple[slice, ...]:
    """Return one slice of branches per device, in order. Sizes differ by at most one; the first is the largest.

    With more devices than branches, some slices are empty. Raises ValueError if either count is below one.
    """
    if branches < 1 or devices < 1:
        raise ValueError(f"received {branches} branches and {devices} devices, expected at least one of each")
    edges = [-(-branches * device // devices) for device in range(devices + 1)]
    return tuple(slice(first, last) for first, last in pairwise(edges))


def micro_batches(requests: int, branches: int, num_parts: int) -> list[Part]:
    """Split a batch into about `num_parts` equal parts: by requests first, then by branches if there are too few
    requests.

    The result has fewer parts if there are fewer windows, and sometimes a few more than `num_parts`. Parts are ordered
    by request, then by branch.
    """
    groups = split_branches(requests, min(requests, num_parts))
    cuts = split_branches(branches, min(branches, -(-num_parts // len(groups))))
    return [Part(group, cut) for group in groups for cut in cuts]


def branch_part_count(parts: Sequence[Part]) -> int:
    """Return the number of parts that hold branches of the same requests, as `Statistics.joined` needs it.

    `parts` comes from `micro_batches`.
    """
    return sum(part.requests == parts[0].requests for part in parts)


def rows_are_shared(batch: WindowBatch, slot: int, count: int) -> bool:
    """Return True if the first `count` window rows of request `slot` (an index on axis R) are equal on all branches.

    A row depends on the prefix, which all branches share, and on the rows it attends to, through all layers. Rows are
    therefore equal if they attend to nothing after them, and if their tokens, positions and mask are equal on all
    branches. The block-causal window guarantees this for rows to be cached (docs/concepts/decoding.md). Another device,
    or another number of branches in the forward, may still round them differently.
    """
    mask = batch.window_mask[slot, :, :count]
    if mask[:, :, count:].any():
        return False
    known = (batch.input_ids[slot, :, :count], batch.position_ids[slot, :, :count], mask)
    return all(np.array_equal(array, np.broadcast_to(array[:1], array.shape)) for array in known)
