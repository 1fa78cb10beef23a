"""Windows of random tokens after a prefix, for comparing and timing sessions."""

from collections.abc import Sequence

import numpy as np

from lopa.runtime.contract import WindowBatch


def random_windows(
    requests: Sequence[int],
    shape: tuple[int, int, int],
    vocabulary: int,
    rng: np.random.Generator,
    *,
    start: int,
) -> WindowBatch:
    """Return windows of the `shape` B, W, Q for every request, at positions from `start`, at temperature 1.

    Every row attends to its complete window. Ids and sampled positions are random.
    """
    branches, width, queries = shape
    rows = (len(requests), branches, width)
    return WindowBatch(
        requests=tuple(requests),
        input_ids=rng.integers(vocabulary, size=rows),
        position_ids=np.broadcast_to(np.arange(start, start + width), rows).copy(),
        window_mask=np.ones((*rows, width), np.bool_),
        logits_index=rng.integers(width, size=(len(requests), branches, queries)),
        temperature=np.ones(len(requests), np.float32),
    )
