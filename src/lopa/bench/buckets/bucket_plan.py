"""Contents of the plan file from the planner's result."""

from collections.abc import Mapping

from lopa.bench.buckets.bucket_costs import BucketCosts, bytes_of_bucket
from lopa.bench.buckets.planner import BucketChoice
from lopa.bench.report import date_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_SCHEMA, BucketPlan, BucketTable, Expected, ShapeSource
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.contract.sizes import Sizes


def bucket_plan_from_choice(
    choice: BucketChoice,
    bundle: Bundle,
    sources: tuple[ShapeSource, ...],
    forwards: Mapping[Sizes, int],
    costs: BucketCosts,
) -> BucketPlan:
    """Return the plan for `bundle`. `forwards` are the shapes of `sources` with their counts."""
    return BucketPlan(
        schema=BUCKETS_SCHEMA,
        contract=CONTRACT_VERSION,
        weights_sha256=bundle.manifest.weights_digest,
        made=date_now(),
        sources=list(sources),
        costs=costs.about,
        every_size=choice.every_size,
        bucket_bytes=max(bytes_of_bucket(bundle.manifest, bucket) for bucket in choice.buckets),
        expected=expected_effect(choice, forwards, costs),
        buckets=list(choice.buckets),
    )


def expected_effect(choice: BucketChoice, forwards: Mapping[Sizes, int], costs: BucketCosts) -> Expected:
    """Return the effect of running each forward in its shape bucket, split if necessary."""
    table, total = BucketTable(choice.buckets), sum(forwards.values())
    chosen = {sizes: table.bucket_for(sizes) for sizes in forwards}
    seconds = sum(count * chosen[sizes].seconds_for(sizes) for sizes, count in forwards.items()) / total
    rows = sum(count * chosen[sizes].forwards(sizes) * chosen[sizes].rows for sizes, count in forwards.items())
    return Expected(
        seconds=seconds,
        no_padding_seconds=sum(count * costs.seconds(sizes) for sizes, count in forwards.items()) / total,
        least_seconds=seconds * choice.least_share,
        padding=rows / sum(count * sizes.rows for sizes, count in forwards.items()) - 1,
    )
