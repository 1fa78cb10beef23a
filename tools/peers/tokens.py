"""Random tokens of a comparison, the same in every run."""

from pathlib import Path

import numpy as np

from lopa.bench.forward.work import ForwardShape
from lopa.runtime.contract import Int64


def tokens_of_shape(vocabulary: int, shape: ForwardShape) -> Int64:
    """Return the prefix, equal for all shapes with the same length of it, then every branch's window."""
    prefix = np.random.default_rng(shape.prefix).integers(vocabulary, size=shape.prefix)
    rng = np.random.default_rng([shape.prefix, shape.branches, shape.window])
    return np.concatenate([prefix, rng.integers(vocabulary, size=shape.branches * shape.window)])


def write_tokens(folder: Path, vocabulary: int, shape: ForwardShape) -> Path:
    """Write the tokens of a shape as int32 to a file in `folder`, and return its path."""
    path = folder / f"tokens-{shape.branches}x{shape.window}"
    tokens_of_shape(vocabulary, shape).astype(np.int32).tofile(path)
    return path
