"""A gear plan as tables for readers. Knows no planning."""

from collections import Counter
from collections.abc import Mapping, Sequence

from lopa.bench.gears.costs import bytes_of_gear
from lopa.bench.gears.rivals import Outcome
from lopa.bench.table import Table, table_from_records
from lopa.runtime.bundle.gears import Gear, GearPlan, GearTable
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.contract.sizes import Sizes


def table_of_gears(plan: GearPlan, forwards: Mapping[Sizes, int], manifest: Manifest) -> Table:
    """The gears, how often each runs, and their memory."""
    chooser, runs = GearTable(plan.gears), Counter[Gear]()
    for sizes, count in forwards.items():
        gear = chooser.gear_for(sizes)
        runs[gear] += count * gear.forwards(sizes)
    every = runs.total()
    return table_from_records(
        f"Gears for {plan.costs.device}, {plan.costs.kind} costs ({plan.costs.machine}), "
        f"{sum(source.forwards for source in plan.sources)} recorded forwards",
        plan.gears,
        {
            "requests x branches x window, prefix": lambda gear: (
                f"{gear.requests} x {gear.branches} x {gear.window}, {gear.prefix}"
            ),
            "wanted": lambda gear: str(gear.wanted),
            "ms": lambda gear: f"{gear.seconds * 1e3:#.3g}",
            "share of forwards": lambda gear: f"{100 * runs[gear] / every:.1f} %",
            "MiB in and out": lambda gear: f"{bytes_of_gear(manifest, gear) / 2**20:.1f}",
        },
    )


def table_of_outcomes(plan: GearPlan, outcomes: Sequence[Outcome]) -> Table:
    """Ways of choosing shapes beside each other, the first being the measure of the others."""
    unpadded = outcomes[0]
    expected = plan.expected
    gap = 1 - expected.least_seconds / expected.seconds
    considered = "all sizes that occur" if plan.every_size else "a part of the sizes that occur, which are too many,"
    proof = "no better choice exists" if gap <= 0 else f"a better choice saves at most {100 * gap:.2f} %"
    return table_from_records(
        f"Expected time of a forward; among gears of {considered} {proof}",
        outcomes,
        {
            "shapes": lambda each: each.name,
            "different": lambda each: str(each.shapes),
            "padding rows": lambda each: f"{100 * each.padding:.1f} %",
            "ms": lambda each: f"{each.seconds * 1e3:#.4g}",
            "over no padding": lambda each: f"{100 * (each.seconds / unpadded.seconds - 1):+.1f} %",
        },
    )
