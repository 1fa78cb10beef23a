"""shape_buckets.json: the few shapes that engines are built for (buckets), and which of them serves a forward.

A forward runs in a shape that was planned for: rows, branches and requests that it does not have are padding. Does not
make a plan (lopa.bench.buckets.planner), does not pad (accelerator.padding), knows no engine.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import Reasons, Record, record_from_file
from lopa.runtime.contract import TILE, tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError

BUCKETS_SCHEMA = 1
BUCKETS_NAME = "shape_buckets.json"
"""File name in a bundle, beside the manifest."""
_FORMER_NAME = "gears.json"
_FORMER_KEYS = {"gears": "buckets", "gear_bytes": "bucket_bytes"}
SPLIT_COST = 1.1
"""By how much a forward that is one of several counts more than alone: answers are copied together, and the host does
more. It also keeps differences within the error of a measurement from splitting anything."""
MAX_MASK_BYTES = 2**32
"""That the window mask of a bucket may take, [R, B, W, W]: its largest input on the host."""
_REMEDY = "plan again: lopa-export plan BUNDLE"

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=2**48)]


class ShapeBucket(Sizes, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape, and what it costs. An engine built for it sees nothing else."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    """Expected, of one forward in this shape."""

    def forwards(self, sizes: Sizes) -> int:
        """How many forwards in this shape serve `sizes`, whose window, prefix and wanted rows must fit.

        Requests and branches do not see each other, so that they can be split; the rows of a window do.
        """
        return -(-sizes.requests // self.requests) * -(-sizes.branches // self.branches)

    def seconds_for(self, sizes: Sizes) -> float:
        """Expected for all these forwards, and for putting their answers together."""
        forwards = self.forwards(sizes)
        return self.seconds * (forwards if forwards == 1 else SPLIT_COST * forwards)

    def holds_rows(self, sizes: Sizes) -> bool:
        """Whether window, prefix and wanted rows fit."""
        return sizes.window <= self.window and sizes.prefix <= self.prefix and sizes.wanted <= self.wanted


ShapeBuckets = Annotated[list[ShapeBucket], Meta(min_length=1, max_length=256)]


def bucket_from_sizes(sizes: Sizes, seconds: float) -> ShapeBucket:
    """The bucket of this shape."""
    return ShapeBucket(*msgspec.structs.astuple(sizes), seconds=seconds)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the shapes of a plan were counted in: a file of traces, or prompts that were decoded for it."""

    name: str
    sha256: str
    forwards: Count


class BucketPlanCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The seconds that a plan was made with."""

    kind: str
    """measured or modelled."""
    device: str
    machine: str
    measured: str | None
    """ISO date and time; None for a model."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the plan makes of the forwards of its sources, by its costs. Seconds are means of one forward."""

    seconds: Seconds
    no_padding_seconds: Seconds
    """If every shape had an engine of its own."""
    least_seconds: Seconds
    """Proven: no choice of as many buckets among the sizes considered is faster. Equal to `seconds` for a best plan."""
    padding: Seconds
    """Padding rows (requests x branches x window) for each real one."""


class BucketPlan(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file. The last bucket takes every window and prefix within the limits that were planned for."""

    weights_sha256: str
    """Of the bundle that was planned for."""
    made: str
    """ISO date and time."""
    sources: Annotated[list[Source], Meta(max_length=4096)]
    costs: BucketPlanCosts
    every_size: bool
    """Whether all sizes that occur were considered; otherwise they were too many, and some were rounded up first."""
    bucket_bytes: Count
    """Of the inputs and outputs of the largest bucket, caches included (not weights, nor an engine's workspace)."""
    expected: Expected
    buckets: ShapeBuckets
    """Small ones first."""


class BucketTable:
    """Chooses among buckets: what serves which sizes is worked out once, when such sizes first occur."""

    def __init__(self, buckets: Sequence[ShapeBucket]) -> None:
        """`buckets` as `buckets_can_be_used` wants them."""
        self._buckets = tuple(buckets)
        self._most = Sizes(*(max(getattr(bucket, name) for bucket in buckets) for name in Sizes.__struct_fields__))
        self._windows = sorted({bucket.window for bucket in buckets})
        self._prefixes = sorted({bucket.prefix for bucket in buckets})
        self._cheapest: dict[tuple[int, int, int, int], ShapeBucket] = {}
        """By requests, branches, and the sizes of buckets that hold window and prefix: as many as a program comes to."""

    def holds(self, sizes: Sizes) -> bool:
        """Whether some bucket has room for the window, the prefix and the wanted rows, which cannot be split."""
        upper = self._most
        return sizes.window <= upper.window and sizes.prefix <= upper.prefix and sizes.wanted <= upper.wanted

    def bucket_for(self, sizes: Sizes) -> ShapeBucket:
        """The bucket with the least `seconds_for` these sizes.

        That is mostly one that covers them. Where none does, or where forwards of parts are much cheaper, requests and
        branches are split. Raises BadInputError when no bucket holds the window, the prefix or the wanted rows: those
        cannot be split, since a window's rows see each other.
        """
        largest = self._most
        if not self.holds(sizes):
            raise BadInputError(
                f"a forward over {sizes.window} window rows, {sizes.prefix} prefix rows and {sizes.wanted} wanted rows",
                expected=f"at most {largest.window}, {largest.prefix} and {largest.wanted}, as the largest bucket; the rows of a "
                "window see each other and cannot be run in parts",
                remedy="shorten the prompt or lower max_new_tokens, or plan again with a larger --max-prompt",
            )
        window = _rounded_up(self._windows, max(sizes.window, sizes.wanted))
        prefix = _rounded_up(self._prefixes, sizes.prefix)
        key = (sizes.requests, sizes.branches, window, prefix)
        if key not in self._cheapest:
            self._cheapest[key] = self._bucket_from_sizes(Sizes(*key, wanted=0))
        return self._cheapest[key]

    def _bucket_from_sizes(self, sizes: Sizes) -> ShapeBucket:
        """Of equally cheap ones the first."""
        return min(
            (bucket for bucket in self._buckets if bucket.holds_rows(sizes)),
            key=lambda bucket: bucket.seconds_for(sizes),
        )


def bucket_plan_path(folder: Path) -> Path:
    """Return where the bundle `folder` has its plan: shape_buckets.json, or gears.json of an earlier version."""
    former = folder / _FORMER_NAME
    return former if former.is_file() and not (folder / BUCKETS_NAME).exists() else folder / BUCKETS_NAME


def bucket_plan_from_file(path: Path, bundle: Bundle) -> BucketPlan:
    """Read and check a plan. Raises BadInputError when it cannot be used, or was made for another bundle."""
    plan = record_from_file(
        path,
        BucketPlan,
        what="a plan of shape buckets",
        schema=BUCKETS_SCHEMA,
        remedy=_REMEDY,
        checks=[_reasons_against_buckets],
        former_keys=_FORMER_KEYS,
    )
    weights = bundle.manifest.weights_digest
    if plan.weights_sha256 != weights:
        raise BadInputError(
            f"{path} was made for weights {plan.weights_sha256}", expected=f"weights {weights}", remedy=_REMEDY
        )
    check_buckets_fit(plan.buckets, bundle.manifest, source=str(path), remedy=_REMEDY)
    return plan


def _reasons_against_buckets(plan: BucketPlan) -> Reasons:
    if not buckets_can_be_used(plan.buckets):
        yield (
            f"the buckets {[_sizes_text(bucket) for bucket in plan.buckets]}",
            f"sizes of at least 1, prefixes in multiples of {TILE}, window masks of at most {MAX_MASK_BYTES} bytes, "
            "as many wanted rows as window rows up to a common limit, and one bucket with the longest window and the "
            "longest prefix",
        )


def check_buckets_fit(buckets: Sequence[ShapeBucket], manifest: Manifest, *, source: str, remedy: str) -> None:
    """Raise BadInputError for buckets beyond twice the model's positions, which no decode comes near.

    Twice, since sizes are rounded up and a plan may be made for longer prompts than the model was trained for.
    """
    longest = tiles(2 * manifest.dimensions.max_positions)
    for bucket in buckets:
        if max(bucket.window, bucket.prefix) > longest:
            raise BadInputError(
                f"{source} has the bucket {_sizes_text(bucket)}",
                expected=f"windows and prefixes of at most {longest}, for a model of "
                f"{manifest.dimensions.max_positions} positions",
                remedy=remedy,
            )


def buckets_can_be_used(buckets: Sequence[ShapeBucket]) -> bool:
    """Whether every bucket is a shape of the contract, and one takes every window, prefix and wanted row.

    Wanted rows follow the window up to the most that a decode can want, so that a bucket with room for a window has room
    for what is wanted of it.
    """
    window, prefix, wanted = (
        max((getattr(bucket, name) for bucket in buckets), default=0) for name in ("window", "prefix", "wanted")
    )
    sound = all(
        min(bucket.requests, bucket.branches, bucket.wanted, bucket.prefix) >= 1
        and bucket.wanted == min(bucket.window, wanted)
        and bucket.prefix % TILE == 0
        and bucket.requests * bucket.branches * bucket.window**2 <= MAX_MASK_BYTES
        and bucket.seconds > 0
        for bucket in buckets
    )
    return sound and any((bucket.window, bucket.prefix) == (window, prefix) for bucket in buckets)


def _rounded_up(values: Sequence[int], number: int) -> int:
    """The first of the ascending `values` that is not smaller than `number`."""
    return values[bisect_left(values, number)]


def _sizes_text(bucket: ShapeBucket) -> str:
    return f"{bucket.requests} x {bucket.branches} x {bucket.window}, prefix {bucket.prefix}, wanted {bucket.wanted}"
