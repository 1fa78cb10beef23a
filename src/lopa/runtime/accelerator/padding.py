"""A forward cut into parts that fit a gear, and padded to its shape. Pure; knows arrays only.

Padding is inert. A padding row sees itself alone and no real row sees it; a padding branch is made of such rows, and so
is a padding request, which has no committed prefix row either. What padding computes is cut off (Statistics.part).
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from lopa.runtime.bundle.gears import Gear
from lopa.runtime.contract import WindowBatch
from lopa.runtime.contract.batch_parts import Part
from lopa.runtime.contract.sizes import Sizes


def parts_of_forward(sizes: Sizes, gear: Gear) -> Iterator[Part]:
    """The parts of `sizes` that fit `gear` one by one; as many as gear.forwards."""
    requests = range(0, sizes.requests, gear.requests)
    branches = range(0, sizes.branches, gear.branches)
    for request, branch in product(requests, branches):
        yield Part(
            slice(request, min(request + gear.requests, sizes.requests)),
            slice(branch, min(branch + gear.branches, sizes.branches)),
        )


def padded_batch(batch: WindowBatch, gear: Gear) -> WindowBatch:
    """`batch`, which fits `gear`, in the gear's shape. Padding requests have negative numbers of their own."""
    requests, branches, width = batch.input_ids.shape
    rows = (gear.requests, gear.branches, gear.window)
    input_ids = np.zeros(rows, np.int64)
    input_ids[:requests, :branches, :width] = batch.input_ids
    position_ids = np.zeros(rows, np.int64)
    position_ids[:requests, :branches, :width] = batch.position_ids
    window_mask = np.zeros((*rows, gear.window), np.bool_)
    window_mask[..., np.arange(gear.window), np.arange(gear.window)] = True
    window_mask[:requests, :branches, :width, :width] = batch.window_mask
    logits_index = np.zeros((gear.requests, gear.branches, gear.wanted), np.int64)
    logits_index[:requests, :branches, : batch.logits_index.shape[2]] = batch.logits_index
    temperature = np.ones(gear.requests, np.float32)
    temperature[:requests] = batch.temperature
    unused = min(0, *batch.requests) - 1
    return WindowBatch(
        requests=(*batch.requests, *range(unused, unused - (gear.requests - requests), -1)),
        input_ids=input_ids,
        position_ids=position_ids,
        window_mask=window_mask,
        logits_index=logits_index,
        temperature=temperature,
    )
