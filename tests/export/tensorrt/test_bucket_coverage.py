"""Shape buckets that are too small for decodes with the bundle's default options are rejected."""

from pathlib import Path

import msgspec
import pytest
from tests.runtime.tensorrt.buckets import BUCKETS, bucket

from lopa.export.tensorrt.bucket_coverage import check_buckets_cover_defaults, min_limits
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import ShapeBucket
from lopa.runtime.errors import BadInputError


def _bucket(window: int, prefix: int, wanted: int) -> ShapeBucket:
    return msgspec.structs.replace(bucket(1, 1, window, prefix, 1.0), wanted=wanted)


def test_the_limits_match_the_defaults(tiny_bundle: Path) -> None:
    manifest = Bundle.open(tiny_bundle).manifest
    limits = min_limits(manifest)
    assert (limits.window, limits.prefix, limits.wanted) == (256, 320, 256)
    check_buckets_cover_defaults([_bucket(256, 320, 256)], manifest, "shape_buckets.json")
    check_buckets_cover_defaults(BUCKETS, manifest, "shape_buckets.json")


@pytest.mark.parametrize(
    "short",
    [_bucket(255, 320, 255), _bucket(256, 256, 256), _bucket(256, 320, 255)],
    ids=["window", "prefix", "wanted"],
)
def test_a_plan_that_is_too_small_is_rejected(tiny_bundle: Path, short: ShapeBucket) -> None:
    with pytest.raises(BadInputError, match=r"buckets\.json covers windows of") as caught:
        check_buckets_cover_defaults([short], Bundle.open(tiny_bundle).manifest, "shape_buckets.json")
    assert "256, 256 and 320" in caught.value.expected
