"""Shape buckets and plans for tests."""

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketPlan, BucketPlanCosts, Expected, ShapeBucket, ShapeSource


def bucket(
    requests: int, branches: int, window: int, prefix: int, seconds: float | None = None, *, wanted: int = 96
) -> ShapeBucket:
    """Return a bucket with at most `wanted` sampled rows; its default seconds are its number of rows."""
    rows = float(requests * branches * window)
    return ShapeBucket(
        requests=requests,
        branches=branches,
        window=window,
        prefix=prefix,
        wanted=min(window, wanted),
        seconds=rows if seconds is None else seconds,
    )


BUCKETS = [bucket(1, 1, 80, 64), bucket(1, 3, 64, 128), bucket(1, 5, 48, 64), bucket(2, 5, 96, 192)]
"""Buckets for the recorded traces of five branches, some of which are split."""


def params_of(bundle: Bundle, **changes: object) -> BucketPlan:
    """Return a plan for `bundle` with BUCKETS and these changes."""
    plan = BucketPlan(
        schema=1,
        contract=1,
        weights_sha256=bundle.manifest.weights_digest,
        made="2026-11-21",
        sources=[ShapeSource(name="t.jsonl", sha256="00", forwards=10)],
        costs=BucketPlanCosts(kind="modelled", device="cpu", machine="test", measured=None),
        every_size=True,
        bucket_bytes=1000,
        expected=Expected(seconds=1.1, no_padding_seconds=1.0, least_seconds=1.1, padding=0.2),
        buckets=BUCKETS,
    )
    return msgspec.structs.replace(plan, **changes)
