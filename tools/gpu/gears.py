"""The plan of gears for a bundle that tools/gpu/report.py measures: with it, engines on a GPU run in CUDA graphs."""

from collections import Counter
from collections.abc import Sequence

from lopa.bench.forward.work import ForwardShape
from lopa.bench.gears.costs import gear_costs
from lopa.bench.gears.plan import gear_plan_from_choice
from lopa.bench.gears.planner import Choice
from lopa.bench.gears.rivals import outcome_of_gears, rival_outcomes
from lopa.export.tensorrt.gear_coverage import least_limits
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import GearPlan, Source, gear_from_sizes
from lopa.runtime.contract.sizes import Sizes

_DECODED = ((4, 96, 512), (4, 128, 512))
"""Branches, window and prefix of further steps that the stage decode runs (bench/gpu/host_share.py)."""


def gear_plan_of_shapes(bundle: Bundle, shapes: Sequence[ForwardShape], device: str) -> GearPlan:
    """A gear for each of `shapes`, a few for decodes, and one that takes everything which the defaults can come to."""
    limits = least_limits(bundle.manifest)
    sizes = {(shape.branches, shape.window, shape.prefix) for shape in shapes} | set(_DECODED)
    most = tuple(max(each[axis] for each in sizes) for axis in range(3))
    sizes.add((most[0], max(most[1], limits.window), max(most[2], limits.prefix)))
    wanted = max(limits.wanted, most[1])
    costs = gear_costs(bundle, device, None)
    forwards = Counter(Sizes(1, b, w, p, min(w, wanted)) for b, w, p in sorted(sizes, key=lambda s: s[::-1]))
    gears = tuple(gear_from_sizes(each, costs.seconds(each)) for each in forwards)
    largest = max(forwards, key=lambda each: (each.branches, each.window, each.prefix))
    source = Source(name="the shapes of tools/gpu/report.py", sha256="", forwards=forwards.total())
    return gear_plan_from_choice(
        Choice(gears, least_share=1.0, every_size=True),
        bundle,
        (source,),
        costs,
        outcome_of_gears("the shapes", gears, forwards),
        rival_outcomes(forwards, largest, costs)[0],
    )
