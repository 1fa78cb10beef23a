"""Commit in numpy, the bit-exact reference of the kernel."""

from collections.abc import Sequence

from lopa.runtime.contract import Rows


def commit_reference(
    windows: Sequence[Rows], caches: Sequence[Rows], *, request: int, branch: int, slot: int, offset: int, count: int
) -> None:
    """Append the first `count` new rows of one branch to the committed rows of a cache, for every layer, in place.

    `windows` has the key and value rows of every layer, each [R, B, Hkv, W, D]. `caches` has an array for each of them,
    [slots, Hkv, P, D] of the same type. The rows of `branch` of `request` go to offset .. offset + count of `slot`.
    """
    for rows, cache in zip(windows, caches, strict=True):
        cache[slot, :, offset : offset + count] = rows[request, branch, :, :count]
