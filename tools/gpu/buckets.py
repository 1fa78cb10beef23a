"""The plan of buckets for a bundle that tools/gpu/report.py measures: with it, engines on a GPU run in CUDA graphs."""

from collections import Counter
from collections.abc import Sequence

from lopa.bench.buckets.costs import bucket_costs
from lopa.bench.buckets.plan import bucket_plan_from_choice
from lopa.bench.buckets.planner import Choice
from lopa.bench.buckets.rivals import outcome_of_buckets, rival_outcomes
from lopa.bench.forward.work import ForwardShape
from lopa.export.tensorrt.bucket_coverage import least_limits
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketPlan, Source, bucket_from_sizes
from lopa.runtime.contract.sizes import Sizes

_DECODED = ((4, 96, 512), (4, 128, 512))
"""Branches, window and prefix of further steps that the stage decode runs (bench/gpu/host_share.py)."""


def bucket_plan_of_shapes(bundle: Bundle, shapes: Sequence[ForwardShape], device: str) -> BucketPlan:
    """A bucket for each of `shapes`, a few for decodes, and one that takes everything which the defaults can come to."""
    limits = least_limits(bundle.manifest)
    sizes = {(shape.branches, shape.window, shape.prefix) for shape in shapes} | set(_DECODED)
    largest_sizes = tuple(max(each[axis] for each in sizes) for axis in range(3))
    sizes.add((largest_sizes[0], max(largest_sizes[1], limits.window), max(largest_sizes[2], limits.prefix)))
    wanted = max(limits.wanted, largest_sizes[1])
    costs = bucket_costs(bundle, device, None)
    forwards = Counter(Sizes(1, b, w, p, min(w, wanted)) for b, w, p in sorted(sizes, key=lambda s: s[::-1]))
    buckets = tuple(bucket_from_sizes(each, costs.seconds(each)) for each in forwards)
    largest = max(forwards, key=lambda each: (each.branches, each.window, each.prefix))
    source = Source(name="the shapes of tools/gpu/report.py", sha256="", forwards=forwards.total())
    return bucket_plan_from_choice(
        Choice(buckets, least_share=1.0, every_size=True),
        bundle,
        (source,),
        costs,
        outcome_of_buckets("the shapes", buckets, forwards),
        rival_outcomes(forwards, largest, costs)[0],
    )
