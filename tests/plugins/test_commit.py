"""Commit: the kernel copies exactly the given rows of every layer, and nothing else."""

import numpy as np
import pytest
from tests.plugins import kernel_calls
from tests.plugins.commit_reference import commit_reference
from tests.plugins.conftest import Kernels

Array = np.ndarray


def _arrays(dtype: str, *, seed: int = 0) -> tuple[list[Array], list[Array]]:
    """Return 6 random arrays of 2 requests, 3 branches, 2 heads, 40 rows of 24, and caches of 2 slots and 64 rows."""
    rng = np.random.default_rng(seed)
    windows = [rng.standard_normal((2, 3, 2, 40, 24)).astype(dtype) for _ in range(6)]
    return windows, [rng.standard_normal((2, 2, 64, 24)).astype(dtype) for _ in range(6)]


@pytest.mark.parametrize(
    ("dtype", "request_", "branch", "slot", "offset", "count"),
    [
        ("float32", 1, 2, 0, 24, 40),
        ("float16", 0, 1, 1, 63, 1),
        ("float16", 1, 0, 1, 5, 33),
        ("float32", 1, 1, 0, 64, 0),
    ],
)
def test_the_given_rows_are_copied(
    kernels: Kernels, dtype: str, request_: int, branch: int, slot: int, offset: int, count: int
) -> None:
    windows, caches = _arrays(dtype)
    where = {"request": request_, "branch": branch, "slot": slot, "offset": offset, "count": count}
    found = kernels(kernel_calls.run_commit, windows, caches, where)
    wanted = [cache.copy() for cache in caches]
    commit_reference(windows, wanted, **where)
    assert (count > 0) == any((a != b).any() for a, b in zip(caches, wanted, strict=True))
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs.astype(np.float32))
