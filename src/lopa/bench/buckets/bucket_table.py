"""Tables of a plan of shape buckets."""

from collections import Counter
from collections.abc import Mapping

from lopa.bench.buckets.bucket_costs import bytes_of_bucket
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


def table_of_expected(plan: BucketPlan, forwards: Mapping[Sizes, int]) -> Table:
    """Return a table of the expected time of a forward without padding and with the plan.

    Each of the shapes must be compiled or captured.
    """
    expected, chooser = plan.expected, BucketTable(plan.buckets)
    gap = 1 - expected.least_seconds / expected.seconds
    considered = "all occurring sizes" if plan.every_size else "a subset of the occurring sizes"
    proof = "no better choice exists" if gap <= 0 else f"a better choice saves at most {100 * gap:.2f} %"
    shapes = {(sizes.requests, sizes.branches, sizes.window, sizes.prefix) for sizes in forwards}
    used = {chooser.bucket_for(sizes) for sizes in forwards}
    slower = expected.seconds / expected.no_padding_seconds - 1
    return Table(
        f"Expected time of a forward; for buckets of {considered}, {proof}",
        ("scheme", "shapes", "padding rows", "ms", "vs no padding"),
        (
            ("no padding", str(len(shapes)), "0.0 %", f"{expected.no_padding_seconds * 1e3:#.4g}", "+0.0 %"),
            (
                f"this plan, {len(plan.buckets)} buckets",
                str(len(used)),
                f"{100 * expected.padding:.1f} %",
                f"{expected.seconds * 1e3:#.4g}",
                f"{100 * slower:+.1f} %",
            ),
        ),
    )
