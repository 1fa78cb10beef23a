"""gears.json: the few shapes that engines are built for (gears), and which of them serves a forward.

A forward runs in a shape that was planned for: rows, branches and requests that it does not have are padding. Does not
make a plan (lopa.bench.gears.planner), does not pad (accelerator.padding), knows no engine.
"""

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.manifest import Manifest
from lopa.runtime.bundle.record import Reasons, Record, record_from_file
from lopa.runtime.contract import TILE, tiles
from lopa.runtime.contract.sizes import Sizes
from lopa.runtime.errors import BadInputError

GEARS_SCHEMA = 1
GEARS_NAME = "gears.json"
"""Its place in a bundle, beside the manifest."""
SPLIT_COST = 1.1
"""By how much a forward that is one of several counts more than alone: answers are copied together, and the host does
more. It also keeps differences within the error of a measurement from splitting anything."""
MOST_MASK_BYTES = 2**32
"""That the window mask of a gear may take, [R, B, W, W]: its largest input on the host."""
_REMEDY = "plan again: lopa-export plan BUNDLE"

Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=2**48)]


class Gear(Sizes, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape, and what it costs. An engine built for it sees nothing else."""

    seconds: Annotated[float, Meta(gt=0, le=1e9)]
    """Expected, of one forward in this shape."""

    def forwards(self, sizes: Sizes) -> int:
        """How many forwards in this shape serve `sizes`, whose window, prefix and wanted rows must fit.

        Requests and branches do not see each other, so that they can be split; the rows of a window do.
        """
        return -(-sizes.requests // self.requests) * -(-sizes.branches // self.branches)

    def seconds_for(self, sizes: Sizes) -> float:
        """Expected for all these forwards, and for putting their answers together."""
        forwards = self.forwards(sizes)
        return self.seconds * (forwards if forwards == 1 else SPLIT_COST * forwards)

    def holds_rows(self, sizes: Sizes) -> bool:
        """Whether window, prefix and wanted rows fit."""
        return sizes.window <= self.window and sizes.prefix <= self.prefix and sizes.wanted <= self.wanted


Gears = Annotated[list[Gear], Meta(min_length=1, max_length=256)]


def gear_from_sizes(sizes: Sizes, seconds: float) -> Gear:
    """The gear of this shape."""
    return Gear(*msgspec.structs.astuple(sizes), seconds=seconds)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the shapes of a plan were counted in: a file of traces, or prompts that were decoded for it."""

    name: str
    sha256: str
    forwards: Count


class GearPlanCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The seconds that a plan was made with."""

    kind: str
    """measured or modelled."""
    device: str
    machine: str
    measured: str | None
    """ISO date and time; None for a model."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the plan makes of the forwards of its sources, by its costs. Seconds are means of one forward."""

    seconds: Seconds
    no_padding_seconds: Seconds
    """If every shape had an engine of its own."""
    least_seconds: Seconds
    """Proven: no choice of as many gears among the sizes considered is faster. Equal to `seconds` for a best plan."""
    padding: Seconds
    """Padding rows (requests x branches x window) for each real one."""


class GearPlan(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file. The last gear takes every window and prefix within the limits that were planned for."""

    weights_sha256: str
    """Of the bundle that was planned for."""
    made: str
    """ISO date and time."""
    sources: Annotated[list[Source], Meta(max_length=4096)]
    costs: GearPlanCosts
    every_size: bool
    """Whether all sizes that occur were considered; otherwise they were too many, and some were rounded up first."""
    gear_bytes: Count
    """Of the inputs and outputs of the largest gear, caches included (not weights, nor an engine's workspace)."""
    expected: Expected
    gears: Gears
    """Small ones first."""


class GearTable:
    """Chooses among gears: what serves which sizes is worked out once, when such sizes first occur."""

    def __init__(self, gears: Sequence[Gear]) -> None:
        """`gears` as `gears_can_be_used` wants them."""
        self._gears = tuple(gears)
        self._most = Sizes(*(max(getattr(gear, name) for gear in gears) for name in Sizes.__struct_fields__))
        self._windows = sorted({gear.window for gear in gears})
        self._prefixes = sorted({gear.prefix for gear in gears})
        self._cheapest: dict[tuple[int, int, int, int], Gear] = {}
        """By requests, branches, and the sizes of gears that hold window and prefix: as many as a program comes to."""

    def holds(self, sizes: Sizes) -> bool:
        """Whether some gear has room for the window, the prefix and the wanted rows, which cannot be split."""
        most = self._most
        return sizes.window <= most.window and sizes.prefix <= most.prefix and sizes.wanted <= most.wanted

    def gear_for(self, sizes: Sizes) -> Gear:
        """The gear with the least `seconds_for` these sizes.

        That is mostly one that covers them. Where none does, or where forwards of parts are much cheaper, requests and
        branches are split. Raises BadInputError when no gear holds the window, the prefix or the wanted rows: those
        cannot be split, since a window's rows see each other.
        """
        most = self._most
        if not self.holds(sizes):
            raise BadInputError(
                f"a forward over {sizes.window} window rows, {sizes.prefix} prefix rows and {sizes.wanted} wanted rows",
                expected=f"at most {most.window}, {most.prefix} and {most.wanted}, as the largest gear; the rows of a "
                "window see each other and cannot be run in parts",
                remedy="shorten the prompt or lower max_new_tokens, or plan again with a larger --max-prompt",
            )
        window = _rounded_up(self._windows, max(sizes.window, sizes.wanted))
        prefix = _rounded_up(self._prefixes, sizes.prefix)
        key = (sizes.requests, sizes.branches, window, prefix)
        if key not in self._cheapest:
            self._cheapest[key] = self._gear_from_sizes(Sizes(*key, wanted=0))
        return self._cheapest[key]

    def _gear_from_sizes(self, sizes: Sizes) -> Gear:
        """Of equally cheap ones the first."""
        return min((gear for gear in self._gears if gear.holds_rows(sizes)), key=lambda gear: gear.seconds_for(sizes))


def gear_plan_from_file(path: Path, bundle: Bundle) -> GearPlan:
    """Read and check a plan. Raises BadInputError when it cannot be used, or was made for another bundle."""
    checks = [_reasons_against_gears]
    plan = record_from_file(path, GearPlan, what="a gear plan", schema=GEARS_SCHEMA, remedy=_REMEDY, checks=checks)
    weights = bundle.manifest.weights_digest
    if plan.weights_sha256 != weights:
        raise BadInputError(
            f"{path} was made for weights {plan.weights_sha256}", expected=f"weights {weights}", remedy=_REMEDY
        )
    check_gears_fit(plan.gears, bundle.manifest, source=str(path), remedy=_REMEDY)
    return plan


def _reasons_against_gears(plan: GearPlan) -> Reasons:
    if not gears_can_be_used(plan.gears):
        yield (
            f"the gears {[_sizes_text(gear) for gear in plan.gears]}",
            f"sizes of at least 1, prefixes in multiples of {TILE}, window masks of at most {MOST_MASK_BYTES} bytes, "
            "as many wanted rows as window rows up to a common limit, and one gear with the longest window and the "
            "longest prefix",
        )


def check_gears_fit(gears: Sequence[Gear], manifest: Manifest, *, source: str, remedy: str) -> None:
    """Raise BadInputError for gears beyond twice the model's positions, which no decode comes near.

    Twice, since sizes are rounded up and a plan may be made for longer prompts than the model was trained for.
    """
    most = tiles(2 * manifest.dimensions.max_positions)
    for gear in gears:
        if max(gear.window, gear.prefix) > most:
            raise BadInputError(
                f"{source} has the gear {_sizes_text(gear)}",
                expected=f"windows and prefixes of at most {most}, for a model of "
                f"{manifest.dimensions.max_positions} positions",
                remedy=remedy,
            )


def gears_can_be_used(gears: Sequence[Gear]) -> bool:
    """Whether every gear is a shape of the contract, and one takes every window, prefix and wanted row.

    Wanted rows follow the window up to the most that a decode can want, so that a gear with room for a window has room
    for what is wanted of it.
    """
    window, prefix, wanted = (
        max((getattr(gear, name) for gear in gears), default=0) for name in ("window", "prefix", "wanted")
    )
    sound = all(
        min(gear.requests, gear.branches, gear.wanted, gear.prefix) >= 1
        and gear.wanted == min(gear.window, wanted)
        and gear.prefix % TILE == 0
        and gear.requests * gear.branches * gear.window**2 <= MOST_MASK_BYTES
        and gear.seconds > 0
        for gear in gears
    )
    return sound and any((gear.window, gear.prefix) == (window, prefix) for gear in gears)


def _rounded_up(values: Sequence[int], number: int) -> int:
    """The first of the ascending `values` that is not smaller than `number`."""
    return values[bisect_left(values, number)]


def _sizes_text(gear: Gear) -> str:
    return f"{gear.requests} x {gear.branches} x {gear.window}, prefix {gear.prefix}, wanted {gear.wanted}"
