"""Random inputs of a forward: tokens after a random prefix."""

from dataclasses import replace

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.export.verify.cases import random_windows
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract import CacheRows, WindowBatch
from lopa.runtime.contract.forward import stored_dtype, stored_from_float32


def random_prefix_rows(manifest: Manifest, rows: int, rng: np.random.Generator) -> CacheRows:
    """Return rows to append to a request's prefix, distributed like normalized keys and values."""
    sizes = manifest.dimensions
    shape = (sizes.kv_heads, rows, sizes.head_size)
    dtype = stored_dtype(manifest.dtype)
    arrays = (rng.standard_normal(shape, np.float32) for _ in range(2 * sizes.layers))
    return CacheRows(tuple(stored_from_float32(array, dtype) for array in arrays))


def random_window(manifest: Manifest, request: int, shape: ForwardShape, rng: np.random.Generator) -> WindowBatch:
    """Return random tokens after the prefix. Every row attends to its whole window, and the last `wanted` rows are
    sampled."""
    sizes = (shape.branches, shape.window, shape.wanted)
    batch = random_windows((request,), sizes, manifest.dimensions.vocab_size, rng, start=shape.prefix)
    last = np.arange(shape.window - shape.wanted, shape.window)
    return replace(batch, logits_index=np.broadcast_to(last, batch.logits_index.shape).copy())
