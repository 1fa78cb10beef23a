"""Split a forward into parts that fit a shape bucket, and pad them to its shape.

Padding has no effect. A padding row attends to itself only, and no real row attends to it. Padding branches and
requests consist of such rows; padding requests also have no committed prefix rows. Statistics.part removes the padding
results.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.contract import CanvasInputs, WindowBatch
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
    wanted = (*rows[:2], bucket.wanted)
    window_mask = np.zeros((*rows, bucket.window), np.bool_)
    window_mask[..., np.arange(bucket.window), np.arange(bucket.window)] = True
    window_mask[:requests, :branches, :width, :width] = batch.window_mask
    temperature = np.ones(bucket.requests, np.float32)
    temperature[:requests] = batch.temperature
    unused = min(0, *batch.requests) - 1
    canvas = batch.canvas
    return WindowBatch(
        requests=(*batch.requests, *range(unused, unused - (bucket.requests - requests), -1)),
        input_ids=_padded(batch.input_ids, rows),
        position_ids=_padded(batch.position_ids, rows),
        window_mask=window_mask,
        logits_index=_padded(batch.logits_index, wanted),
        temperature=temperature,
        canvas=None
        if canvas is None
        else CanvasInputs(
            _padded(canvas.is_canvas, rows),
            _padded(canvas.attention_start, rows),
            _padded(canvas.soft_embeddings, rows),
            _padded(canvas.uniform, wanted),
        ),
    )


def _padded(values: npt.NDArray[Any], shape: tuple[int, int, int]) -> Any:
    """Return `values` [..] with zeros behind them, in `shape` and its own last axes."""
    padded = np.zeros((*shape, *values.shape[3:]), values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    return padded
