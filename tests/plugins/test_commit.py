"""Commit: the kernel copies exactly the given rows of every array and head, and nothing else."""

import numpy as np
import pytest
from tests.plugins import kernel_calls
from tests.plugins.conftest import Kernels

Strides = tuple[int, int, int]
ARRAYS, HEADS = 6, 2
NEW: Strides = (23 * HEADS, 1, HEADS)
"""Distances between arrays, heads and rows of a forward's 23 new rows, [arrays, 23, heads]."""
CHUNK: Strides = (HEADS * 64, 64, 1)
"""Distances in a chunk, [arrays, heads, 64]."""


@pytest.mark.parametrize(
    ("dtype", "word", "source", "target", "pieces"),
    [
        ("float32", 4, NEW, CHUNK, [(0, 2 * HEADS, 1, 60, 4), (0, 6 * HEADS, 2, 0, 17)]),  # a run over two chunks
        ("float16", 2, NEW, CHUNK, [(0, 22 * HEADS, 1, 63, 1)]),
        ("float16", 8, CHUNK, CHUNK, [(1, 0, 2, 0, 64), (2, 0, 1, 0, 0)]),  # a copy of a chunk, and no rows
        ("float32", 8, CHUNK, NEW, [(2, 9, 0, 3 * HEADS, 11)]),
    ],
)
def test_the_given_rows_are_copied(
    kernels: Kernels, dtype: str, word: int, source: Strides, target: Strides, pieces: list[tuple[int, ...]]
) -> None:
    rng = np.random.default_rng(0)
    slabs = [rng.standard_normal((ARRAYS * HEADS * 64, 20)).astype(dtype) for _ in range(3)]
    wanted = [slab.copy() for slab in slabs]
    for a, first, b, to, count in pieces:
        for array, head, row in np.ndindex(ARRAYS, HEADS, count):
            place = (array, head, row)
            wanted[b][to + np.dot(place, target)] = slabs[a][first + np.dot(place, source)]
    assert sum(int((a != b).any(axis=1).sum()) for a, b in zip(slabs, wanted, strict=True)) == ARRAYS * HEADS * sum(
        piece[-1] for piece in pieces
    )
    found = kernels(kernel_calls.run_commit, slabs, pieces, [ARRAYS, HEADS, *source, *target], word)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
