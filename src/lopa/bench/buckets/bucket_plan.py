"""Contents of the plan file from the planner's result."""

from lopa.bench.buckets.bucket_costs import BucketCosts, bytes_of_bucket
from lopa.bench.buckets.bucketing_schemes import PaddingOutcome
from lopa.bench.buckets.planner import BucketChoice
from lopa.bench.machine import date_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_SCHEMA, BucketPlan, Expected, ShapeSource
from lopa.runtime.contract import CONTRACT_VERSION


def bucket_plan_from_choice(
    choice: BucketChoice,
    bundle: Bundle,
    sources: tuple[ShapeSource, ...],
    costs: BucketCosts,
    outcome: PaddingOutcome,
    no_padding: PaddingOutcome,
) -> BucketPlan:
    """Return the plan for `bundle`. `outcome` describes the forwards of `sources` in the plan's shape buckets."""
    return BucketPlan(
        schema=BUCKETS_SCHEMA,
        contract=CONTRACT_VERSION,
        weights_sha256=bundle.manifest.weights_digest,
        made=date_now(),
        sources=list(sources),
        costs=costs.about,
        every_size=choice.every_size,
        bucket_bytes=max(bytes_of_bucket(bundle.manifest, bucket) for bucket in choice.buckets),
        expected=Expected(
            seconds=outcome.seconds,
            no_padding_seconds=no_padding.seconds,
            least_seconds=outcome.seconds * choice.least_share,
            padding=outcome.padding,
        ),
        buckets=list(choice.buckets),
    )
