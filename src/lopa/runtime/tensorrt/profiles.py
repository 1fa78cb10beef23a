"""Optimization profiles of a TensorRT engine: one exact shape per shape bucket, and one range for long prompts.

This module also selects the profile of a forward, and the shape to pad to.

A shape bucket always costs its full shape. That suits the windows of a decode, which have few sizes. A request's first
window is as long as its prompt and runs once. It would mostly be padding in the only bucket that holds the longest
prompt. Therefore, a one-branch window longer than all other buckets runs in the range, almost unpadded.
"""

from collections.abc import Sequence

import msgspec

from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket, bucket_from_sizes
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

WINDOW_MULTIPLE = 64
"""Granularity of windows in the range. An engine prepares memory and kernels once per shape."""


class ProfileRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Range of shapes of one profile."""

    min: Sizes
    best: Sizes
    """Shape for which kernels are chosen."""
    max: Sizes

    def holds(self, bucket: ShapeBucket) -> bool:
        """Return True if the range contains the shape of `bucket`."""
        return all(
            getattr(self.min, name) <= getattr(bucket, name) <= getattr(self.max, name)
            for name in Sizes.__struct_fields__
        )


def exact_range(bucket: ShapeBucket) -> ProfileRange:
    """Return the profile of a shape bucket, with only its shape."""
    return ProfileRange(min=bucket, best=bucket, max=bucket)


def prefill_range(buckets: Sequence[ShapeBucket]) -> ProfileRange:
    """Return the range for one branch and windows longer than all but the longest of `buckets`.

    Prefixes and requests are as in `buckets`.
    """
    windows = sorted({bucket.window for bucket in buckets})
    shortest = windows[-2] + 1 if len(windows) > 1 else windows[-1]
    middle = min(_round_up(-(-(shortest + windows[-1]) // 2), WINDOW_MULTIPLE), windows[-1])
    wanted = max(bucket.wanted for bucket in buckets)
    return ProfileRange(
        min=Sizes(requests=1, branches=1, window=shortest, prefix=TILE, wanted=1),
        best=Sizes(requests=1, branches=1, window=middle, prefix=TILE, wanted=min(middle, wanted)),
        max=Sizes(
            requests=max(bucket.requests for bucket in buckets),
            branches=1,
            window=windows[-1],
            prefix=max(bucket.prefix for bucket in buckets),
            wanted=wanted,
        ),
    )


def profiles_of_buckets(buckets: Sequence[ShapeBucket], prefill: ProfileRange) -> list[ProfileRange]:
    """Return all profiles of an engine in order: one per shape bucket, then `prefill`."""
    return [*(exact_range(bucket) for bucket in buckets), prefill]


class ProfileTable:
    """Lookup of the profile of a forward."""

    def __init__(self, buckets: Sequence[ShapeBucket], prefill: ProfileRange) -> None:
        self._buckets = list(buckets)
        self._table = BucketTable(buckets)
        self._prefixes = sorted({TILE, *(bucket.prefix for bucket in buckets)})
        self._prefill = prefill

    def profile_for(self, sizes: Sizes) -> tuple[int, ShapeBucket]:
        """Return the index of the profile that runs `sizes`, and the shape to pad to. If the shape is smaller than
        `sizes`, the forward is split into parts.

        Raises BadInputError like BucketTable.bucket_for if no profile holds the window, the prefix or the sampled
        positions.
        """
        bucket = self._table.bucket_for(sizes)
        upper = self._prefill.max
        in_range = sizes.requests <= upper.requests and sizes.branches == 1 and sizes.window >= self._prefill.min.window
        if not in_range:
            return self._buckets.index(bucket), bucket
        window = min(_round_up(sizes.window, WINDOW_MULTIPLE), upper.window)
        # A cache in device memory has the prefix length of a shape bucket, so it is used without a copy.
        prefix = next(prefix for prefix in self._prefixes if prefix >= sizes.prefix)
        shape = Sizes(sizes.requests, 1, window, prefix, min(window, upper.wanted))
        return len(self._buckets), bucket_from_sizes(shape, bucket.seconds)


def _round_up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple
