"""The optimization profiles of a TensorRT engine: one of exact shapes for each bucket, and one range for long prompts.

Which profile runs a forward, and to which shape it is padded there. Pure; knows no TensorRT.

A bucket costs its whole shape whatever part of it is real. That pays for windows of a decode, which come back to few
sizes; the first window of a request is as long as its prompt, runs once, and would mostly be padding in the one bucket
that holds the longest. So a one-branch window longer than that of every other bucket runs in the range, nearly as it is.
"""

from collections.abc import Sequence

import msgspec

from lopa.runtime.bundle.buckets import BucketTable, ShapeBucket, bucket_from_sizes
from lopa.runtime.contract import TILE
from lopa.runtime.contract.sizes import Sizes

WINDOW_MULTIPLE = 64
"""Windows in the range are padded to it: an engine works out memory and kernels once for each shape that it sees."""


class ProfileRange(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Shapes that one profile takes, axis by axis."""

    min: Sizes
    best: Sizes
    """What kernels are chosen for."""
    max: Sizes

    def holds(self, bucket: ShapeBucket) -> bool:
        """Whether the shape of `bucket` is one of them."""
        return all(
            getattr(self.min, name) <= getattr(bucket, name) <= getattr(self.max, name)
            for name in Sizes.__struct_fields__
        )


def exact_range(bucket: ShapeBucket) -> ProfileRange:
    """The profile of a bucket: its shape alone."""
    return ProfileRange(min=bucket, best=bucket, max=bucket)


def prefill_range(buckets: Sequence[ShapeBucket]) -> ProfileRange:
    """One branch, windows longer than all but the longest of `buckets`, prefixes and requests as those have them."""
    windows = sorted({bucket.window for bucket in buckets})
    shortest = windows[-2] + 1 if len(windows) > 1 else windows[-1]
    middle = min(_up(-(-(shortest + windows[-1]) // 2), WINDOW_MULTIPLE), windows[-1])
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
    """All profiles of an engine in their order: those of the buckets, then the range."""
    return [*(exact_range(bucket) for bucket in buckets), prefill]


class ProfileTable:
    """Chooses the profile of a forward."""

    def __init__(self, buckets: Sequence[ShapeBucket], prefill: ProfileRange) -> None:
        self._buckets = list(buckets)
        self._table = BucketTable(buckets)
        self._prefixes = sorted({TILE, *(bucket.prefix for bucket in buckets)})
        self._prefill = prefill

    def profile_for(self, sizes: Sizes) -> tuple[int, ShapeBucket]:
        """Number of the profile that runs `sizes`, and the shape to pad to: in parts where it is a smaller bucket.

        Raises BadInputError as BucketTable.bucket_for does, when no profile holds the window, the prefix or what is wanted.
        """
        bucket = self._table.bucket_for(sizes)
        upper = self._prefill.max
        in_range = sizes.requests <= upper.requests and sizes.branches == 1 and sizes.window >= self._prefill.min.window
        if not in_range:
            return self._buckets.index(bucket), bucket
        window = min(_up(sizes.window, WINDOW_MULTIPLE), upper.window)
        # A cache in device memory has the prefix of a bucket, and is taken as it is then.
        prefix = next(prefix for prefix in self._prefixes if prefix >= sizes.prefix)
        shape = Sizes(sizes.requests, 1, window, prefix, min(window, upper.wanted))
        return len(self._buckets), bucket_from_sizes(shape, bucket.seconds)


def _up(rows: int, multiple: int) -> int:
    return -(-rows // multiple) * multiple
