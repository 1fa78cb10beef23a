"""The plan file's contents from what the planner found. Does not plan."""

from lopa.bench.gear_costs import GearCosts, bytes_of_gear
from lopa.bench.gear_planner import Choice
from lopa.bench.gear_rivals import Outcome
from lopa.bench.machine import date_now
from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CONTRACT_VERSION
from lopa.runtime.costs import weights_digest
from lopa.runtime.gears import GEARS_SCHEMA, Expected, GearPlan, Source, sizes_of_gear


def plan_from_choice(
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
        weights_sha256=weights_digest(bundle),
        made=date_now(),
        sources=list(sources),
        costs=costs.about,
        every_size=choice.every_size,
        gear_bytes=max(bytes_of_gear(bundle.manifest, sizes_of_gear(gear)) for gear in choice.gears),
        expected=Expected(
            seconds=outcome.seconds,
            no_padding_seconds=no_padding.seconds,
            least_seconds=outcome.seconds * choice.least_share,
            padding=outcome.padding,
        ),
        gears=list(choice.gears),
    )
