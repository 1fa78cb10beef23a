"""The plan file's contents from what the planner found. Does not plan."""

from lopa.bench.buckets.costs import BucketCosts, bytes_of_bucket
from lopa.bench.buckets.planner import Choice
from lopa.bench.buckets.rivals import Outcome
from lopa.bench.machine import date_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BUCKETS_SCHEMA, BucketPlan, Expected, Source
from lopa.runtime.contract import CONTRACT_VERSION


def bucket_plan_from_choice(
    choice: Choice,
    bundle: Bundle,
    sources: tuple[Source, ...],
    costs: BucketCosts,
    outcome: Outcome,
    no_padding: Outcome,
) -> BucketPlan:
    """The plan of `choice` for `bundle`; `outcome` is what its buckets make of the forwards of `sources`."""
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
