"""Commit: the kernel copies exactly the given rows of every layer, and nothing else."""

import numpy as np
import pytest
from tests.plugins import kernel_calls
from tests.plugins.commit_reference import commit_reference
from tests.plugins.conftest import Kernels


@pytest.mark.parametrize(
    ("dtype", "word", "request_", "branch", "slot", "offset", "count"),
    [
        ("float32", 4, 1, 2, 0, 24, 40),
        ("float16", 2, 0, 1, 1, 63, 1),
        ("float16", 8, 1, 0, 1, 5, 33),
        ("float32", 8, 1, 1, 0, 64, 0),
    ],
)
def test_the_given_rows_are_copied(
    kernels: Kernels, dtype: str, word: int, request_: int, branch: int, slot: int, offset: int, count: int
) -> None:
    """Use 6 arrays of 2 requests, 3 branches, 2 heads and 40 rows of 20 elements, and caches of 2 slots and 64 rows."""
    rng = np.random.default_rng(0)
    windows = [rng.standard_normal((2, 3, 2, 40, 20)).astype(dtype) for _ in range(6)]
    caches = [rng.standard_normal((2, 2, 64, 20)).astype(dtype) for _ in range(6)]
    numbers = (request_ * 3 + branch, slot, offset, count)
    found = kernels(kernel_calls.run_commit, windows, caches, numbers, word)
    wanted = [cache.copy() for cache in caches]
    commit_reference(windows, wanted, request=request_, branch=branch, slot=slot, offset=offset, count=count)
    assert (count > 0) == any((a != b).any() for a, b in zip(caches, wanted, strict=True))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)
