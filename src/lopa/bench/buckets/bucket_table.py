"""Tables of a plan of shape buckets."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lopa.bench.buckets.bucket_costs import bytes_of_bucket
from lopa.bench.buckets.bucketing_schemes import PaddingOutcome
from lopa.bench.table import Table, table_from_records
from lopa.runtime.bundle.buckets import BucketPlan, BucketTable, ShapeBucket
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract.sizes import Sizes


def table_of_buckets(plan: BucketPlan, forwards: Mapping[Sizes, int], manifest: Manifest) -> Table:
    """Return a table of the shape buckets with their use and memory."""
    chooser, runs = BucketTable(plan.buckets), Counter[ShapeBucket]()
    for sizes, count in forwards.items():
        bucket = chooser.bucket_for(sizes)
        runs[bucket] += count * bucket.forwards(sizes)
    total = runs.total()
    return table_from_records(
        f"Shape buckets for {plan.costs.device}, {plan.costs.kind} costs ({plan.costs.machine}), "
        f"{sum(source.forwards for source in plan.sources)} recorded forwards",
        plan.buckets,
        {
            "requests x branches x window, prefix": lambda bucket: (
                f"{bucket.requests} x {bucket.branches} x {bucket.window}, {bucket.prefix}"
            ),
            "sampled": lambda bucket: str(bucket.wanted),
            "ms": lambda bucket: f"{bucket.seconds * 1e3:#.3g}",
            "share of forwards": lambda bucket: f"{100 * runs[bucket] / total:.1f} %",
            "MiB inputs + outputs": lambda bucket: f"{bytes_of_bucket(manifest, bucket) / 2**20:.1f}",
        },
    )


def table_of_outcomes(plan: BucketPlan, outcomes: Sequence[PaddingOutcome]) -> Table:
    """Return a table of bucketing schemes; the first is the baseline."""
    unpadded = outcomes[0]
    expected = plan.expected
    gap = 1 - expected.least_seconds / expected.seconds
    considered = "all occurring sizes" if plan.every_size else "a subset of the occurring sizes"
    proof = "no better choice exists" if gap <= 0 else f"a better choice saves at most {100 * gap:.2f} %"
    return table_from_records(
        f"Expected time of a forward; for buckets of {considered}, {proof}",
        outcomes,
        {
            "scheme": lambda each: each.name,
            "shapes": lambda each: str(each.shapes),
            "padding rows": lambda each: f"{100 * each.padding:.1f} %",
            "ms": lambda each: f"{each.seconds * 1e3:#.4g}",
            "vs no padding": lambda each: f"{100 * (each.seconds / unpadded.seconds - 1):+.1f} %",
        },
    )
