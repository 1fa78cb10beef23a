"""Shape buckets for the GPU report's bundle. Engines on a GPU run them as CUDA graphs."""

from collections import Counter
from collections.abc import Sequence

from lopa.bench.buckets.bucket_costs import bucket_costs
from lopa.bench.buckets.bucket_plan import bucket_plan_from_choice
from lopa.bench.buckets.planner import BucketChoice
from lopa.bench.forward.work import ForwardShape
from lopa.export.tensorrt.bucket_coverage import min_limits
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.buckets import BucketPlan, ShapeSource, bucket_from_sizes
from lopa.runtime.contract.sizes import Sizes

_DECODED = ((4, 96, 512), (4, 128, 512))
"""Branches, window and prefix of further steps of the decode stage (bench/gpu/host_share.py)."""


def bucket_plan_of_shapes(bundle: Bundle, shapes: Sequence[ForwardShape], device: str) -> BucketPlan:
    """Return a plan with a shape bucket for each of `shapes`, some for decodes, and one for all default options."""
    limits = min_limits(bundle.manifest)
    sizes = {(shape.branches, shape.window, shape.prefix) for shape in shapes} | set(_DECODED)
    largest_sizes = tuple(max(each[axis] for each in sizes) for axis in range(3))
    sizes.add((largest_sizes[0], max(largest_sizes[1], limits.window), max(largest_sizes[2], limits.prefix)))
    wanted = max(limits.wanted, largest_sizes[1])
    costs = bucket_costs(bundle, device, None)
    forwards = Counter(Sizes(1, b, w, p, min(w, wanted)) for b, w, p in sorted(sizes, key=lambda s: s[::-1]))
    buckets = tuple(bucket_from_sizes(each, costs.seconds(each)) for each in forwards)
    source = ShapeSource(name="the shapes of tools/gpu/report.py", sha256="", forwards=forwards.total())
    return bucket_plan_from_choice(
        BucketChoice(buckets, least_share=1.0, every_size=True),
        bundle,
        (source,),
        forwards,
        costs,
    )
