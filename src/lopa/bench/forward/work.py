"""What a forward must at least compute and move, and the time that takes at a machine's rates: the roofline.

Knows sizes only. Norms, rotations, softmax and the statistics are not counted, nor is anything read a second time: no
implementation of the same network can be faster at these rates.
"""

import math
from dataclasses import dataclass

from lopa.bench.forward.machine_rates import MachineRates
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract.stored_floats import stored_dtype

_EMBEDDING, _HEAD = "embedding.weight", "head.weight"


@dataclass(frozen=True)
class ForwardShape:
    """One forward of one request, as reports write it: contract.Sizes without the requests."""

    branches: int
    window: int
    prefix: int
    wanted: int
    """Window rows of each branch whose statistics are wanted."""


@dataclass(frozen=True)
class Work:
    """Operations (a multiplication and an addition are two) by the type in which they can be done, and bytes."""

    float32: int
    int8: int
    moved: int
    """Bytes: every weight and prefix row is read once, every new row is written once."""


def work_of_forward(manifest: Manifest, shape: ForwardShape) -> Work:
    """The work of one forward; products with integer matrices count as integer ones."""
    sizes = manifest.dimensions
    rows = shape.branches * shape.window
    cache_item = stored_dtype(manifest.dtype).itemsize
    cache_row = 2 * sizes.layers * sizes.kv_heads * sizes.head_size * cache_item
    # Scores and the sum of values: each one product of a query with every row that it may see.
    float32 = 4 * rows * (shape.prefix + shape.window) * sizes.heads * sizes.head_size * sizes.layers
    int8, moved = 0, cache_row * (shape.prefix + rows)
    for name, record in manifest.tensors.items():
        if name == _EMBEDDING:
            moved += rows * record.length // sizes.vocab_size
            continue
        moved += record.length
        if not name.endswith(".weight") or len(record.shape) != 2:
            continue
        operations = 2 * math.prod(record.shape) * (shape.branches * shape.wanted if name == _HEAD else rows)
        if record.dtype in ("int8", "int4"):
            int8 += operations
        else:
            float32 += operations
    return Work(float32, int8, moved)


def floor_seconds(work: Work, rates: MachineRates) -> float:
    """The least time of `work`: of computing and of moving memory whichever is longer, since both can go on at once."""
    return max(work.float32 / rates.float32 + work.int8 / rates.int8, work.moved / rates.bandwidth)
