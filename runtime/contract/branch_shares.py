"""Branches dealt over devices: one forward cut along the branch axis, and the answers put together again.

Pure; knows arrays only, no session and no device.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from lopa.runtime.contract.forward import Statistics, WindowBatch


def shares_of_branches(branches: int, devices: int) -> tuple[slice, ...]:
    """For each device the branches that it computes, in order; sizes differ by one at most, and the first is a largest.

    Where devices are more than branches, some get an empty slice. Raises ValueError for less than one of either.
    """
    if branches < 1 or devices < 1:
        raise ValueError(f"received {branches} branches and {devices} devices, expected at least one of each")
    edges = [-(-branches * device // devices) for device in range(devices + 1)]
    return tuple(slice(first, last) for first, last in pairwise(edges))


def part_of_batch(batch: WindowBatch, share: slice, slots: slice = slice(None)) -> WindowBatch:
    """The windows of some branches of every request, or of those in `slots`."""
    return WindowBatch(
        requests=batch.requests[slots],
        input_ids=batch.input_ids[slots, share],
        position_ids=batch.position_ids[slots, share],
        window_mask=batch.window_mask[slots, share],
        logits_index=batch.logits_index[slots, share],
        temperature=batch.temperature[slots],
    )


def statistics_from_parts(parts: Sequence[Statistics]) -> Statistics:
    """The statistics of all branches from those of consecutive shares, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    logits = [part.logits for part in parts if part.logits is not None]
    return Statistics(
        topk_ids=np.concatenate([part.topk_ids for part in parts], axis=1),
        topk_logprobs=np.concatenate([part.topk_logprobs for part in parts], axis=1),
        entropy=np.concatenate([part.entropy for part in parts], axis=1),
        logits=np.concatenate(logits, axis=1) if len(logits) == len(parts) else None,
    )
