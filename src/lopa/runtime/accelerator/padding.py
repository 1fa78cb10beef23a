"""Split a forward into parts that fit a shape bucket, and pad them to its shape.

Padding has no effect. A padding row attends to itself only, and no real row attends to it. Padding branches and
requests consist of such rows; padding requests also have no committed prefix rows. Statistics.part removes the padding
results.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import WindowBatch
from lopa.runtime.contract.batch_parts import Part
from lopa.runtime.contract.sizes import Sizes


def parts_of_forward(sizes: Sizes, bucket: ShapeBucket) -> Iterator[Part]:
    """Yield the parts of `sizes` that each fit `bucket`. `bucket.forwards` returns their number."""
    requests = range(0, sizes.requests, bucket.requests)
    branches = range(0, sizes.branches, bucket.branches)
    for request, branch in product(requests, branches):
        yield Part(
            slice(request, min(request + bucket.requests, sizes.requests)),
            slice(branch, min(branch + bucket.branches, sizes.branches)),
        )


def padded_batch(batch: WindowBatch, bucket: ShapeBucket) -> WindowBatch:
    """Return `batch`, which fits `bucket`, padded to the bucket's shape. Padding requests have unique negative
    numbers.
    """
    requests, branches, width = batch.input_ids.shape
    rows = (bucket.requests, bucket.branches, bucket.window)
    input_ids = np.zeros(rows, np.int64)
    input_ids[:requests, :branches, :width] = batch.input_ids
    position_ids = np.zeros(rows, np.int64)
    position_ids[:requests, :branches, :width] = batch.position_ids
    window_mask = np.zeros((*rows, bucket.window), np.bool_)
    window_mask[..., np.arange(bucket.window), np.arange(bucket.window)] = True
    window_mask[:requests, :branches, :width, :width] = batch.window_mask
    logits_index = np.zeros((bucket.requests, bucket.branches, bucket.wanted), np.int64)
    logits_index[:requests, :branches, : batch.logits_index.shape[2]] = batch.logits_index
    temperature = np.ones(bucket.requests, np.float32)
    temperature[:requests] = batch.temperature
    unused = min(0, *batch.requests) - 1
    return WindowBatch(
        requests=(*batch.requests, *range(unused, unused - (bucket.requests - requests), -1)),
        input_ids=input_ids,
        position_ids=position_ids,
        window_mask=window_mask,
        logits_index=logits_index,
        temperature=temperature,
    )
