"""Inputs of a forward of chosen sizes: random tokens over a random prefix. Does not run it."""

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CacheRows, WindowBatch
from lopa.runtime.contract.stored_floats import stored_dtype, stored_from_float32


def random_prefix_rows(manifest: Manifest, rows: int, rng: np.random.Generator) -> CacheRows:
    """Rows to append to a request's prefix, of the size that normalized keys and values have."""
    sizes = manifest.dimensions
    shape = (sizes.kv_heads, rows, sizes.head_size)
    dtype = stored_dtype(manifest.dtype)
    arrays = (rng.standard_normal(shape, np.float32) for _ in range(2 * sizes.layers))
    return CacheRows(tuple(stored_from_float32(array, dtype) for array in arrays))


def random_window(manifest: Manifest, request: int, shape: ForwardShape, rng: np.random.Generator) -> WindowBatch:
    """Random tokens right behind the prefix; every row sees its whole window, the last `wanted` rows are asked for."""
    rows = (1, shape.branches, shape.window)
    positions = np.arange(shape.prefix, shape.prefix + shape.window)
    wanted = np.arange(shape.window - shape.wanted, shape.window)
    return WindowBatch(
        requests=(request,),
        input_ids=rng.integers(manifest.dimensions.vocab_size, size=rows),
        position_ids=np.ascontiguousarray(np.broadcast_to(positions, rows)),
        window_mask=np.ones((*rows, shape.window), np.bool_),
        logits_index=np.ascontiguousarray(np.broadcast_to(wanted, (1, shape.branches, shape.wanted))),
        temperature=np.ones(1, np.float32),
    )
