"""Windows of random tokens behind a prefix, as large as is asked: what sessions are compared and timed on.

Does not know what is committed, nor who computes them.
"""

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
    """Windows in the `shape` B, W, Q of every request at the positions from `start`, at temperature 1.

    Every row sees its whole window; ids and wanted rows are random.
    """
    branches, width, wanted = shape
    rows = (len(requests), branches, width)
    return WindowBatch(
        requests=tuple(requests),
        input_ids=rng.integers(vocabulary, size=rows),
        position_ids=np.broadcast_to(np.arange(start, start + width), rows).copy(),
        window_mask=np.ones((*rows, width), np.bool_),
        logits_index=rng.integers(width, size=(len(requests), branches, wanted)),
        temperature=np.ones(len(requests), np.float32),
    )
