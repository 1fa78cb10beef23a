"""Shapes of other bucketing schemes, computed by hand."""

from collections import Counter

import pytest

from lopa.bench.buckets.bucket_costs import BucketCosts
from lopa.bench.buckets.bucketing_schemes import bucketing_outcomes, outcome_of_buckets
from lopa.runtime.bundle.buckets import SPLIT_COST, BucketPlanCosts, ShapeBucket
from lopa.runtime.contract.sizes import Sizes

LIMITS = Sizes(2, 5, 256, 320, 257)
ROWS = BucketCosts(
    BucketPlanCosts(kind="modelled", device="test", machine="test", measured=None),
    lambda sequences, window, _: float(sequences * window),
)
"""Costs of one second per row."""


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        # rows: real, tokens in multiples of 8 or 16, sequences in buckets, powers of two, largest
        (Sizes(1, 5, 58, 64, 33), [290, 5 * 61, 8 * 58, 5 * 64, 2560]),
        (Sizes(1, 1, 17, 64, 17), [17, 24, 17, 32, 2560]),
        (Sizes(2, 3, 256, 320, 1), [1536, 1536, 8 * 256, 2 * 4 * 256, 2560]),
    ],
)
def test_rows_of_every_scheme(sizes: Sizes, expected: list[int]) -> None:
    outcomes = bucketing_outcomes({sizes: 3}, LIMITS, ROWS)
    assert [outcome.name.split()[0] for outcome in outcomes] == ["no", "buckets", "buckets", "powers", "always"]
    assert [outcome.seconds for outcome in outcomes] == expected
    assert [outcome.padding for outcome in outcomes] == pytest.approx([rows / expected[0] - 1 for rows in expected])
    assert [outcome.shapes for outcome in outcomes] == [1] * 5


def test_means_are_weighted_and_shapes_counted() -> None:
    forwards = Counter({Sizes(1, 1, 33, 64, 1): 3, Sizes(1, 1, 50, 64, 1): 1})
    unpadded, *_, powers, largest = bucketing_outcomes(forwards, LIMITS, ROWS)
    assert (unpadded.seconds, unpadded.shapes) == ((3 * 33 + 50) / 4, 2)
    assert (powers.seconds, powers.shapes, largest.shapes) == (64, 1, 1)


def test_buckets_count_every_forward_of_a_split() -> None:
    buckets = [
        ShapeBucket(requests=1, branches=2, window=64, prefix=320, wanted=64, seconds=1.0),
        ShapeBucket(requests=1, branches=1, window=32, prefix=64, wanted=32, seconds=0.25),
    ]
    outcome = outcome_of_buckets("buckets", buckets, {Sizes(1, 5, 40, 128, 1): 1, Sizes(1, 1, 30, 64, 1): 3})
    assert outcome.seconds == pytest.approx((SPLIT_COST * 3 * 1.0 + 3 * 0.25) / 4)
    assert outcome.padding == pytest.approx((6 * 64 + 3 * 32) / (5 * 40 + 3 * 30) - 1)
    assert outcome.shapes == 2
