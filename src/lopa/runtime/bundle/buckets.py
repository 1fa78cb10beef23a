"""Shape buckets: the few shapes that engines are built for (`BUCKETS_NAME`), and the choice of one for a forward.

A forward runs in a planned shape; missing rows, branches and requests are padded. `lopa.bench.buckets.planner` makes
plans, and `accelerator.padding` pads forwards.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.bundle import Bundle, check_no_canvases
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import Reasons, Record, record_from_file
from lopa.runtime.contract import TILE, tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError

BUCKETS_SCHEMA = 1
BUCKETS_NAME = "shape_buckets.json"
"""File name in a bundle, next to the manifest."""
SPLIT_COST = 1.1
"""Cost factor of a forward that is split into several.

It covers concatenation and extra host work, and avoids splits for gains within measurement error.
"""
MAX_MASK_BYTES = 2**32
"""Maximum bytes of a shape bucket's window mask [R, B, W, W], its largest input on the host."""

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=2**48)]


class ShapeBucket(Sizes, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape and its cost. An engine built for it runs no other shape."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    """Expected seconds of one forward in this shape."""

    def forwards(self, sizes: Sizes) -> int:
        """Return the number of forwards in this shape that serve `sizes`.

        Window, prefix and sampled positions must fit. Requests and branches are independent, so they can be split. The
        rows of a window attend to each other and cannot.
        """
        return -(-sizes.requests // self.requests) * -(-sizes.branches // self.branches)

    def seconds_for(self, sizes: Sizes) -> float:
        """Return the expected seconds of all these forwards, including concatenation."""
        forwards = self.forwards(sizes)
        return self.seconds * (forwards if forwards == 1 else SPLIT_COST * forwards)

    def fits_rows(self, sizes: Sizes) -> bool:
        """Return True if window, prefix and sampled positions fit."""
        return sizes.window <= self.window and sizes.prefix <= self.prefix and sizes.wanted <= self.wanted


ShapeBuckets = Annotated[list[ShapeBucket], Meta(min_length=1, max_length=256)]


def bucket_from_sizes(sizes: Sizes, seconds: float) -> ShapeBucket:
    """Return the shape bucket of this shape."""
    return ShapeBucket(*msgspec.structs.astuple(sizes), seconds=seconds)


class ShapeSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Origin of the counted shapes: a step log, or prompts that were decoded for the plan."""

    name: str
    sha256: str
    forwards: Count


class BucketPlanCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Origin of the forward times on which a plan is based."""

    kind: str
    """Origin of the seconds: "measured" or "modelled"."""
    device: str
    machine: str
    measured: str | None
    """Date and time of the measurement in ISO format, or None for a model."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Expected effect of a plan on the forwards of its sources. Seconds are means per forward."""

    seconds: Seconds
    no_padding_seconds: Seconds
    """Mean seconds if every shape had its own engine."""
    least_seconds: Seconds
    """Proven lower bound for this number of shape buckets among the sizes considered. It equals `seconds` for an
    optimal plan.
    """
    padding: Seconds
    """Padding rows (requests x branches x window) per real row."""


class BucketPlan(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Content of a plan file. The last shape bucket holds every window and prefix within the planned limits."""

    weights_sha256: str
    """SHA-256 of the weights of the planned bundle."""
    made: str
    """Date and time of planning, in ISO format."""
    sources: Annotated[list[ShapeSource], Meta(max_length=4096)]
    costs: BucketPlanCosts
    every_size: bool
    """True if all occurring sizes were considered. Otherwise there were too many, and some were rounded up first."""
    bucket_bytes: Count
    """Bytes of the inputs and outputs of the largest shape bucket.

    This includes caches, but neither weights nor an engine's workspace.
    """
    expected: Expected
    buckets: ShapeBuckets
    """Shape buckets in ascending size."""


class BucketTable:
    """Lookup of the cheapest shape bucket for a forward, with cached results."""

    def __init__(self, buckets: Sequence[ShapeBucket]) -> None:
        """Create a table of `buckets` that pass `are_valid_shape_buckets`."""
        self._buckets = tuple(buckets)
        self._max_sizes = Sizes(*(max(getattr(bucket, name) for bucket in buckets) for name in Sizes.__struct_fields__))
        self._windows = sorted({bucket.window for bucket in buckets})
        self._prefixes = sorted({bucket.prefix for bucket in buckets})
        self._cheapest: dict[tuple[int, int, int, int], ShapeBucket] = {}
        """Chosen shape buckets by requests, branches, and the bucket sizes that hold window and prefix."""

    def holds(self, sizes: Sizes) -> bool:
        """Return True if some shape bucket holds the window, the prefix and the sampled positions, which cannot be
        split.
        """
        limits = self._max_sizes
        return sizes.window <= limits.window and sizes.prefix <= limits.prefix and sizes.wanted <= limits.wanted

    def bucket_for(self, sizes: Sizes) -> ShapeBucket:
        """Return the shape bucket with the smallest `seconds_for` these sizes.

        It usually covers the whole forward. Requests and branches are split if no shape bucket does, or if split
        forwards are much cheaper. Raises BadInputError if no shape bucket holds the window, the prefix or the sampled
        positions. These cannot be split, because a window's rows attend to each other.
        """
        limits = self._max_sizes
        if not self.holds(sizes):
            raise BadInputError(
                f"a forward with {sizes.window} query tokens, {sizes.prefix} cached tokens and {sizes.wanted} sampled "
                "positions",
                expected=f"at most {limits.window}, {limits.prefix} and {limits.wanted}, the largest shape bucket "
                "(a window cannot be run in parts)",
                remedy="shorten the prompt or lower max_new_tokens, or plan again with a larger --max-prompt",
            )
        window = _rounded_up(self._windows, max(sizes.window, sizes.wanted))
        prefix = _rounded_up(self._prefixes, sizes.prefix)
        key = (sizes.requests, sizes.branches, window, prefix)
        if key not in self._cheapest:
            self._cheapest[key] = self._bucket_from_sizes(Sizes(*key, wanted=0))
        return self._cheapest[key]

    def _bucket_from_sizes(self, sizes: Sizes) -> ShapeBucket:
        """Return the cheapest shape bucket; ties go to the first."""
        return min(
            (bucket for bucket in self._buckets if bucket.fits_rows(sizes)),
            key=lambda bucket: bucket.seconds_for(sizes),
        )


def bucket_plan_path(folder: Path) -> Path:
    """Return the path of a bundle's plan."""
    return folder / BUCKETS_NAME


def bucket_plan_from_file(path: Path | None, bundle: Bundle) -> BucketPlan:
    """Read and check a plan, the bundle's own if `path` is None.

    Raises BadInputError if it is unusable or was made for another bundle.
    """
    check_no_canvases(bundle, "an engine")
    path, remedy = path or bucket_plan_path(bundle.path), f"make a plan: lopa-export plan {bundle.path}"
    plan = record_from_file(
        path,
        BucketPlan,
        what="a plan of shape buckets",
        schema=BUCKETS_SCHEMA,
        remedy=remedy,
        checks=[_find_bucket_errors],
    )
    weights = bundle.manifest.weights_digest
    if plan.weights_sha256 != weights:
        raise BadInputError(
            f"{path} was made for weights {plan.weights_sha256}", expected=f"weights {weights}", remedy=remedy
        )
    check_buckets_fit(plan.buckets, bundle.manifest, source=str(path), remedy=remedy)
    return plan


def _find_bucket_errors(plan: BucketPlan) -> Reasons:
    if not are_valid_shape_buckets(plan.buckets):
        yield (
            f"the shape buckets {[_sizes_text(bucket) for bucket in plan.buckets]}",
            f"sizes of at least 1, prefixes in multiples of {TILE}, window masks of at most {MAX_MASK_BYTES} bytes, "
            "as many sampled positions as query tokens up to a common limit, and one shape bucket with the longest "
            "window and the longest prefix",
        )


def check_buckets_fit(buckets: Sequence[ShapeBucket], manifest: Manifest, *, source: str, remedy: str) -> None:
    """Raise BadInputError for shape buckets beyond twice the model's positions.

    The limit is doubled because sizes are rounded up, and because a plan may cover longer prompts than the model was
    trained for.
    """
    max_rows = tiles(2 * manifest.dimensions.max_positions)
    for bucket in buckets:
        if max(bucket.window, bucket.prefix) > max_rows:
            raise BadInputError(
                f"{source} has the shape bucket {_sizes_text(bucket)}",
                expected=f"windows and prefixes of at most {max_rows}, for a model of "
                f"{manifest.dimensions.max_positions} positions",
                remedy=remedy,
            )


def are_valid_shape_buckets(buckets: Sequence[ShapeBucket]) -> bool:
    """Return True if every shape bucket fits the contract and one holds every window, prefix and sampled position.

    The number of sampled positions equals the window up to a common limit. A shape bucket that holds a window thus also
    holds its sampled positions.
    """
    window, prefix, wanted = (
        max((getattr(bucket, name) for bucket in buckets), default=0) for name in ("window", "prefix", "wanted")
    )
    valid = all(
        min(bucket.requests, bucket.branches, bucket.wanted, bucket.prefix) >= 1
        and bucket.wanted == min(bucket.window, wanted)
        and bucket.prefix % TILE == 0
        and bucket.requests * bucket.branches * bucket.window**2 <= MAX_MASK_BYTES
        and bucket.seconds > 0
        for bucket in buckets
    )
    return valid and any((bucket.window, bucket.prefix) == (window, prefix) for bucket in buckets)


def _rounded_up(values: Sequence[int], number: int) -> int:
    """Return the first of the ascending `values` that is at least `number`."""
    return values[bisect_left(values, number)]


def _sizes_text(bucket: ShapeBucket) -> str:
    return f"{bucket.requests} x {bucket.branches} x {bucket.window}, prefix {bucket.prefix}, wanted {bucket.wanted}"
