"""What a forward must at least compute and move, and the time that takes at a machine's rates: the roofline.

Knows sizes only. Norms, rotations, softmax and the statistics are not counted, nor is anything read a second time: no
implementation of the same network can be faster at these rates.
"""

from dataclasses import dataclass

from lopa.bench.forward.machine_rates import MachineRates
from lopa.runtime.bundle.manifest import Manifest, scale_name
from lopa.runtime.bundle.network import HEAD, network_from_dimensions
from lopa.runtime.contract.stored_floats import stored_dtype


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
    """Bytes: what a row uses of the weights and every prefix row are read once, every new row is written once."""


def work_of_forward(manifest: Manifest, shape: ForwardShape) -> Work:
    """The work of one forward; products with integer matrices count as integer ones."""
    sizes = manifest.dimensions
    rows = shape.branches * shape.window
    cache_item = stored_dtype(manifest.dtype).itemsize
    cache_row = 2 * sizes.layers * sizes.kv_heads * sizes.head_size * cache_item
    # Scores and the sum of values: each one product of a query with every row that it may see.
    float32 = 4 * rows * (shape.prefix + shape.window) * sizes.heads * sizes.head_size * sizes.layers
    int8, moved = 0, cache_row * (shape.prefix + rows)
    for name, tensor in network_from_dimensions(sizes).tensors.items():
        length = sum(manifest.tensors[each].length for each in (name, scale_name(name)) if each in manifest.tensors)
        moved += rows * length // sizes.vocab_size if tensor.role == "embedding" else int(length * tensor.row_share)
        operations = int(tensor.row_operations * (shape.branches * shape.wanted if name == HEAD else rows))
        if manifest.has_integers(name):
            int8 += operations
        else:
            float32 += operations
    return Work(float32, int8, moved)


def floor_seconds(work: Work, rates: MachineRates) -> float:
    """The least time of `work`: of computing and of moving memory whichever is longer, since both can go on at once."""
    return max(work.float32 / rates.float32 + work.int8 / rates.int8, work.moved / rates.bandwidth)
