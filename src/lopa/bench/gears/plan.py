"""The plan file's contents from what the planner found. Does not plan."""

from lopa.bench.gears.costs import GearCosts, bytes_of_gear
from lopa.bench.gears.planner import Choice
from lopa.bench.gears.rivals import Outcome
from lopa.bench.machine import date_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.gears import GEARS_SCHEMA, Expected, GearPlan, Source
from lopa.runtime.contract import CONTRACT_VERSION


def gear_plan_from_choice(
    choice: Choice,
    bundle: Bundle,
    sources: tuple[Source, ...],
    costs: GearCosts,
    outcome: Outcome,
    no_padding: Outcome,
) -> GearPlan:
    """The plan of `choice` for `bundle`; `outcome` is what its gears make of the forwards of `sources`."""
    return GearPlan(
        schema=GEARS_SCHEMA,
        contract=CONTRACT_VERSION,
        weights_sha256=bundle.manifest.weights_digest,
        made=date_now(),
        sources=list(sources),
        costs=costs.about,
        every_size=choice.every_size,
        gear_bytes=max(bytes_of_gear(bundle.manifest, gear) for gear in choice.gears),
        expected=Expected(
            seconds=outcome.seconds,
            no_padding_seconds=no_padding.seconds,
            least_seconds=outcome.seconds * choice.least_share,
            padding=outcome.padding,
        ),
        gears=list(choice.gears),
    )
