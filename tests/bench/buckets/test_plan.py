"""Expected effect of a plan on its forwards, computed by hand."""

from collections import Counter

import pytest

from lopa.bench.buckets.bucket_costs import BucketCosts
from lopa.bench.buckets.bucket_plan import expected_effect
from lopa.bench.buckets.planner import BucketChoice
from lopa.runtime.bundle.buckets import SPLIT_COST, BucketPlanCosts, ShapeBucket
from lopa.runtime.contract.sizes import Sizes

ROWS = BucketCosts(
    BucketPlanCosts(kind="modelled", device="test", machine="test", measured=None),
    lambda sequences, window, _: float(sequences * window),
)
"""Costs of one second per row."""
BUCKETS = (
    ShapeBucket(requests=1, branches=1, window=32, prefix=64, wanted=32, seconds=50.0),
    ShapeBucket(requests=1, branches=2, window=64, prefix=320, wanted=64, seconds=200.0),
)


def choice(least_share: float = 1.0) -> BucketChoice:
    return BucketChoice(BUCKETS, least_share=least_share, every_size=True)


def test_every_forward_of_a_split_counts() -> None:
    """The first shape needs three forwards in the second bucket, each with 2 x 64 rows."""
    forwards = Counter({Sizes(1, 5, 40, 128, 1): 1, Sizes(1, 1, 30, 64, 1): 3})
    expected = expected_effect(choice(least_share=0.5), forwards, ROWS)
    assert expected.seconds == pytest.approx((SPLIT_COST * 3 * 200 + 3 * 50) / 4)
    assert expected.no_padding_seconds == pytest.approx((5 * 40 + 3 * 30) / 4)
    assert expected.least_seconds == pytest.approx(expected.seconds / 2)
    assert expected.padding == pytest.approx((6 * 64 + 3 * 32) / (5 * 40 + 3 * 30) - 1)
