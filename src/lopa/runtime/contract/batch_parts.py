"""Splitting of a forward into parts: branches over devices, or micro-batches for a pipeline.

This module also detects rows that are equal on all branches, so that they need not be copied between parts.
`WindowBatch.part` slices padded windows and `Statistics.joined` concatenates the results. This module uses arrays only,
no session and no device.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from lopa.runtime.contract import Bool, Int64, Statistics
from lopa.runtime.contract.packed_batch import PackedBatch


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


class PackedPart(NamedTuple):
    """Some windows of a packed batch."""

    batch: PackedBatch
    places: Int64
    """Indices of its sampled rows among those of the whole batch [m]. Without any, row 0 is sampled and not used."""


def part_of_windows(batch: PackedBatch, chosen: Bool) -> PackedPart:
    """Return the windows of `batch` where `chosen` [S] is True, at least one."""
    rows = np.repeat(chosen, batch.lengths)
    slots, own_slots = np.unique(batch.slots[chosen], return_inverse=True)
    places = np.flatnonzero(rows[batch.sampled_rows])
    sampled = (np.cumsum(rows) - 1)[batch.sampled_rows[places]]
    part = PackedBatch(
        requests=tuple(batch.requests[slot] for slot in slots),
        temperature=batch.temperature[slots],
        slots=own_slots,
        lengths=batch.lengths[chosen],
        input_ids=batch.input_ids[rows],
        position_ids=batch.position_ids[rows],
        mask=batch.mask[np.repeat(chosen, batch.lengths**2)],
        sampled_rows=sampled if len(sampled) else np.zeros(1, np.int64),
    )
    return PackedPart(part, places)


def part_of_branches(batch: PackedBatch, branches: slice) -> PackedPart:
    """Return the windows of `batch` whose number among their request's windows is in `branches`."""
    return part_of_windows(batch, (batch.window_numbers >= branches.start) & (batch.window_numbers < branches.stop))


def statistics_of_parts(parts: Sequence[PackedPart], statistics: Sequence[Statistics]) -> Statistics:
    """Return the statistics of a batch from those of its parts, which have every sampled row once."""
    order = np.argsort(np.concatenate([part.places for part in parts]))
    used = [each for part, each in zip(parts, statistics, strict=True) if len(part.places)]
    joined = Statistics.joined(used, across=1)
    return joined.mapped(lambda array: array[order])


def rows_are_shared(batch: PackedBatch, slot: int, count: int) -> bool:
    """Return True if the first `count` rows of all windows of request `slot` (an index in `requests`) are equal.

    A row depends on the prefix, which all branches share, and on the rows it attends to, through all layers. Rows are
    therefore equal if they attend to nothing after them, and if their tokens, positions and mask are equal on all
    branches. The block-causal window guarantees this for rows to be cached (docs/concepts/decoding.md). Another device,
    or another number of branches in the forward, may still round them differently.
    """
    begins = np.cumsum(batch.lengths**2) - batch.lengths**2
    first: tuple[Int64, Int64, Bool] | None = None
    for window in np.flatnonzero(batch.slots == slot):
        start, length, begin = batch.starts[window], batch.lengths[window], begins[window]
        if length < count:
            return False
        mask = batch.mask[begin : begin + count * length].reshape(-1, length)
        if mask[:, count:].any():
            return False
        rows = batch.input_ids[start : start + count], batch.position_ids[start : start + count], mask[:, :count]
        first = first or rows
        if not all(map(np.array_equal, rows, first)):
            return False
    return True
