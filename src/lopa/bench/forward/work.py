"""Roofline of a forward: its minimum operations and bytes, and the time for them at a machine's rates.

Norms, rotary embedding, softmax and statistics are not counted, and all data is read only once. No implementation of
the network can be faster at these rates.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lopa.runtime.bundle.manifest import Manifest, scale_name
from lopa.runtime.bundle.network import HEAD, network_from_dimensions
from lopa.runtime.contract import stored_dtype


@dataclass(frozen=True)
class MachineRates:
    """Maximum rates of a device."""

    float32: float
    """Operations per second of a float32 product. A multiply-add counts as two."""
    int8: float
    """Operations per second of an int8 product."""
    bandwidth: float
    """Bytes per second of a large copy, reads plus writes."""


def min_seconds(work: Callable[[], object], seconds: float) -> float:
    """Return the minimum seconds of one call of `work`, after a warm-up call.

    Calls repeat for about `seconds`, and at least once.
    """
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        work()
        ended = time.perf_counter()
        best = min(best, ended - began)
        if ended >= end:
            return best


@dataclass(frozen=True)
class ForwardShape:
    """Shape of one forward of one request: contract.Sizes without the requests."""

    branches: int
    window: int
    prefix: int
    wanted: int
    """Sampled positions per branch."""


@dataclass(frozen=True)
class ForwardWork:
    """Operations by data type (a multiply-add counts as two), and bytes moved."""

    float32: int
    int8: int
    moved: int
    """Bytes moved: the used weights and every prefix row read once, and every new row written once.

    Experts count with the share that all rows use together.
    """


def work_of_forward(manifest: Manifest, shape: ForwardShape, touched: float | None = None) -> ForwardWork:
    """Return the work of one forward. Products with integer matrices count as int8.

    `touched` is the measured share of a layer's experts that the rows use. Without it the share is the expected one of
    rows that choose independently. Rows of one text share more.
    """
    sizes = manifest.dimensions
    rows = shape.branches * shape.window
    cache_item = stored_dtype(manifest.dtype).itemsize
    cache_row = 2 * sizes.layers * sizes.kv_heads * sizes.head_size * cache_item
    # Attention needs two products of a query with every visible row: one for the scores, one for the weighted values.
    float32 = 4 * rows * (shape.prefix + shape.window) * sizes.heads * sizes.head_size * sizes.layers
    int8, moved = 0, cache_row * (shape.prefix + rows)
    for name, tensor in network_from_dimensions(sizes).tensors.items():
        length = sum(manifest.tensors[each].length for each in (name, scale_name(name)) if each in manifest.tensors)
        if tensor.role == "embedding":
            moved += rows * length // sizes.vocab_size
        else:
            is_stacked = tensor.row_share < 1
            moved += int(length * (tensor.share_of_rows(rows) if touched is None or not is_stacked else touched))
        operations = int(tensor.row_operations * (shape.branches * shape.wanted if name == HEAD else rows))
        if manifest.is_quantized(name):
            int8 += operations
        else:
            float32 += operations
    return ForwardWork(float32, int8, moved)


def floor_seconds(work: ForwardWork, rates: MachineRates) -> float:
    """Return the compute time or the memory time of `work`, whichever is longer, since the two can overlap."""
    return max(work.float32 / rates.float32 + work.int8 / rates.int8, work.moved / rates.bandwidth)
