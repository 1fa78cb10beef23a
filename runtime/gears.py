"""gears.json: the few shapes that engines are built for (gears), and which of them serves a forward.

A forward runs in a shape that was planned for: rows, branches and requests that it does not have are padding. Does not
make a plan (lopa.bench.gear_planner), does not pad (gear_padding), knows no engine.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import msgspec

from lopa.runtime.bundle import Bundle
from lopa.runtime.contract import CONTRACT_VERSION, TILE
from lopa.runtime.costs import weights_digest
from lopa.runtime.errors import BadInputError

GEARS_SCHEMA = 1
GEARS_NAME = "gears.json"
"""Its place in a bundle, beside the manifest."""
SPLIT_COST = 1.1
"""By how much a forward that is one of several counts more than alone: answers are copied together, and the host does
more. It also keeps differences within the error of a measurement from splitting anything."""
_REMEDY = "plan again: lopa-export plan BUNDLE"


@dataclass(frozen=True, slots=True)
class ForwardSizes:
    """The dynamic axes of one forward: R, B, W, P (rows of allocated cache) and Q of the contract."""

    requests: int
    branches: int
    window: int
    prefix: int
    wanted: int


class Gear(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One shape: R, B, W, P and Q of the contract. An engine built for it sees nothing else."""

    requests: int
    branches: int
    window: int
    prefix: int
    wanted: int
    seconds: float
    """Expected, of one forward in this shape."""

    def forwards(self, sizes: ForwardSizes) -> int:
        """How many forwards in this shape serve `sizes`, whose window, prefix and wanted rows must fit.

        Requests and branches do not see each other, so that they can be split; the rows of a window do.
        """
        return -(-sizes.requests // self.requests) * -(-sizes.branches // self.branches)

    def seconds_for(self, sizes: ForwardSizes) -> float:
        """Expected for all these forwards, and for putting their answers together."""
        forwards = self.forwards(sizes)
        return self.seconds * (forwards if forwards == 1 else SPLIT_COST * forwards)

    def holds_rows(self, sizes: ForwardSizes) -> bool:
        """Whether window, prefix and wanted rows fit."""
        return sizes.window <= self.window and sizes.prefix <= self.prefix and sizes.wanted <= self.wanted


def sizes_of_gear(gear: Gear) -> ForwardSizes:
    """The gear's shape alone."""
    return ForwardSizes(gear.requests, gear.branches, gear.window, gear.prefix, gear.wanted)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the shapes of a plan were counted in: a file of traces, or prompts that were decoded for it."""

    name: str
    sha256: str
    forwards: int


class PlanCosts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The seconds that a plan was made with."""

    kind: str
    """measured or modelled."""
    device: str
    machine: str
    measured: str | None
    """ISO date and time; None for a model."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the plan makes of the forwards of its sources, by its costs. Seconds are means of one forward."""

    seconds: float
    no_padding_seconds: float
    """If every shape had an engine of its own."""
    least_seconds: float
    """Proven: no choice of as many gears among the sizes considered is faster. Equal to `seconds` for a best plan."""
    padding: float
    """Padding rows (requests x branches x window) for each real one."""


class GearPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The whole file. The last gear takes every window and prefix within the limits that were planned for."""

    schema: int
    contract: int
    weights_sha256: str
    """Of the bundle that was planned for."""
    made: str
    """ISO date and time."""
    sources: list[Source]
    costs: PlanCosts
    every_size: bool
    """Whether all sizes that occur were considered; otherwise they were too many, and some were rounded up first."""
    gear_bytes: int
    """Of the inputs and outputs of the largest gear, caches included (not weights, nor an engine's workspace)."""
    expected: Expected
    gears: list[Gear]
    """Small ones first."""


class GearTable:
    """Chooses among gears in constant time: what serves which sizes is worked out once."""

    def __init__(self, gears: Sequence[Gear]) -> None:
        """`gears` as `gears_can_be_used` wants them."""
        self._gears = tuple(gears)
        self._most = ForwardSizes(*(max(getattr(gear, name) for gear in gears) for name in ForwardSizes.__slots__))
        windows = sorted({gear.window for gear in gears})
        prefixes = sorted({gear.prefix for gear in gears})
        self._window_up = _rounded_up(windows, self._most.window)
        self._prefix_up = _rounded_up([prefix // TILE for prefix in prefixes], self._most.prefix // TILE)
        requests, branches = range(1, self._most.requests + 1), range(1, self._most.branches + 1)
        self._cheapest = {
            key: self._gear_from_sizes(ForwardSizes(*key, wanted=0))
            for key in product(requests, branches, windows, prefixes)
        }

    def holds(self, sizes: ForwardSizes) -> bool:
        """Whether some gear has room for the window, the prefix and the wanted rows, which cannot be split."""
        most = self._most
        return sizes.window <= most.window and sizes.prefix <= most.prefix and sizes.wanted <= most.wanted

    def gear_for(self, sizes: ForwardSizes) -> Gear:
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
        window = self._window_up[max(sizes.window, sizes.wanted)]
        prefix = TILE * self._prefix_up[-(-sizes.prefix // TILE)]
        found = self._cheapest.get((sizes.requests, sizes.branches, window, prefix))
        return self._gear_from_sizes(sizes) if found is None else found  # more than any gear takes at once

    def _gear_from_sizes(self, sizes: ForwardSizes) -> Gear:
        """Of equally cheap ones the first."""
        return min((gear for gear in self._gears if gear.holds_rows(sizes)), key=lambda gear: gear.seconds_for(sizes))


def plan_from_file(path: Path, bundle: Bundle) -> GearPlan:
    """Read and check a plan. Raises BadInputError when it cannot be used, or was made for another bundle."""
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=GearPlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise BadInputError(f"{path}: {error}", expected="a gear plan", remedy=_REMEDY) from error
    for name, found, expected in (
        ("schema", plan.schema, GEARS_SCHEMA),
        ("contract", plan.contract, CONTRACT_VERSION),
        ("weights", plan.weights_sha256, weights_digest(bundle)),
    ):
        if found != expected:
            raise BadInputError(f"{path} was made for {name} {found}", expected=f"{name} {expected}", remedy=_REMEDY)
    if not gears_can_be_used(plan.gears):
        raise BadInputError(
            f"{path} has the gears {[_sizes_text(gear) for gear in plan.gears]}",
            expected=f"sizes of at least 1, prefixes in multiples of {TILE}, as many wanted rows as window rows up "
            "to a common limit, and one gear with the longest window and the longest prefix",
            remedy=_REMEDY,
        )
    return plan


def json_from_plan(plan: GearPlan) -> bytes:
    """The text of a plan."""
    return msgspec.json.format(msgspec.json.encode(plan), indent=2) + b"\n"


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
        and gear.seconds > 0
        for gear in gears
    )
    return sound and any((gear.window, gear.prefix) == (window, prefix) for gear in gears)


def _rounded_up(values: Sequence[int], most: int) -> list[int]:
    """For every number from 0 to `most` the first of the ascending `values` that is not smaller."""
    return [next(value for value in values if value >= number) for number in range(most + 1)]


def _sizes_text(gear: Gear) -> str:
    return f"{gear.requests} x {gear.branches} x {gear.window}, prefix {gear.prefix}, wanted {gear.wanted}"
