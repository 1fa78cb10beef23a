"""costs.json: what a forward costs on one device, measured by `lopa-export bench --costs`, and the time between points.

The table lies in the bundle beside the manifest, one file for each device (`costs_name`). Does not measure.
"""

import bisect
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.bundle.bundle import Bundle
from lopa.runtime.bundle.record import Reasons, Record, record_from_file
from lopa.runtime.device_families import spans_processes
from lopa.runtime.errors import BadInputError

COSTS_SCHEMA = 2
_MAX_SECONDS = 1e6
"""Of anything that was measured: days."""
_REMEDY = "measure again: lopa-export bench BUNDLE --costs"


class ForwardCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One point: the median seconds of a forward of one request whose every window row is wanted."""

    branches: Annotated[int, Meta(ge=1, le=2**16)]
    window: Annotated[int, Meta(ge=1, le=2**24)]
    prefix: Annotated[int, Meta(ge=1, le=2**24)]
    seconds: Annotated[float, Meta(gt=0, le=_MAX_SECONDS)]


class Costs(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table of one device. The points form a full grid over branches, window and prefix."""

    device: str
    machine: str
    """The processor or accelerator, for people."""
    threads: Annotated[int, Meta(ge=1, le=2**16)] | None
    weights_sha256: str
    """Of the bundle that was measured."""
    measured: str
    """ISO date and time."""
    host_seconds: Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]
    """Median seconds of a round of one request with one branch outside its forward."""
    host_seconds_a_branch: Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]
    """What every further branch adds to them."""
    points: Annotated[list[ForwardCost], Meta(min_length=1, max_length=100_000)]


def costs_name(device: str) -> str:
    """File name of the table of `device`: costs.cpu.json, costs.cuda-0.json."""
    return f"costs.{device.replace(':', '-')}.json"


def costs_from_bundle(bundle: Bundle, device: str, threads: int | None) -> "CostTable":
    """The table that was measured for `bundle` on `device` with `threads`.

    Raises BadInputError when there is none, when it cannot be read, and when it is of another device, number of
    threads, contract or bundle.
    """
    path = bundle.path / costs_name(device)
    remedy = _remedy(bundle, device, threads)
    if not path.is_file():
        raise BadInputError(f"{path} does not exist", expected="a cost table for this device", remedy=remedy)
    try:
        costs = costs_from_file(path)
    except BadInputError as error:
        raise BadInputError(error.received, expected=error.expected, remedy=remedy) from error
    return CostTable(checked_costs(costs, bundle, device, threads, source=str(path)))


def _remedy(bundle: Bundle, device: str, threads: int | None) -> str:
    """The command that measures the table that is missing, in full."""
    chosen = "choose the number of branches yourself"
    if spans_processes(device):
        return f"{chosen}: there is no cost table for ranks"
    devices = [word for name in device.split(",") for word in ("--device", name)]
    count = [] if threads is None else ["--threads", str(threads)]
    command = ["lopa-export", "bench", str(bundle.path), "--costs", *devices, *count]
    return f"measure one: {shlex.join(command)} (a minute for a small model), or {chosen}"


def checked_costs(costs: Costs, bundle: Bundle, device: str, threads: int | None, *, source: str) -> Costs:
    """`costs`, or BadInputError when they were measured for something else."""
    for name, found, expected in (
        ("device", costs.device, device),
        ("threads", costs.threads, threads),
        ("weights", costs.weights_sha256, bundle.manifest.weights_digest),
    ):
        if found != expected:
            raise BadInputError(
                f"{source} was measured for {name} {found}",
                expected=f"{name} {expected}",
                remedy=_remedy(bundle, device, threads),
            )
    return costs


@dataclass(frozen=True)
class CostTable:
    """Seconds of a forward by branches, window and prefix, between and beyond the measured points.

    Linear between neighbouring points along each axis; beyond the last point in proportion to it along that axis, since
    work grows at least so there; below the first the first.
    """

    costs: Costs

    def seconds(self, branches: int, window: int, prefix: int) -> float:
        """Expected seconds of one forward; `prefix` in rows of allocated cache."""
        asked = (branches, window, prefix)
        if asked not in self._known:
            self._known[asked] = self._interpolated(asked)
        return self._known[asked]

    def host_seconds(self, branches: int) -> float:
        """Expected seconds of a step outside its forward."""
        return self.costs.host_seconds + (branches - 1) * self.costs.host_seconds_a_branch

    @cached_property
    def _known(self) -> dict[tuple[int, int, int], float]:
        """What was asked before: a decode comes back to few sizes, and asks in every step."""
        return {}

    def _interpolated(self, asked: tuple[int, int, int]) -> float:
        total = 0.0
        shares = [_shares(axis, value) for axis, value in zip(self._axes, asked, strict=True)]
        for b, share_b in shares[0]:
            for w, share_w in shares[1]:
                for p, share_p in shares[2]:
                    total += share_b * share_w * share_p * self._grid[b, w, p]
        return total

    @cached_property
    def _grid(self) -> dict[tuple[int, int, int], float]:
        return {(point.branches, point.window, point.prefix): point.seconds for point in self.costs.points}

    @cached_property
    def _axes(self) -> tuple[list[int], list[int], list[int]]:
        branches, windows, prefixes = (sorted(set(axis)) for axis in zip(*self._grid, strict=True))
        return branches, windows, prefixes


def _shares(axis: Sequence[int], value: int) -> list[tuple[int, float]]:
    """Which points of `axis` stand for `value`, and with what weight."""
    after = bisect.bisect_left(axis, value)
    if after == 0:
        return [(axis[0], 1.0)]
    if after == len(axis):
        return [(axis[-1], value / axis[-1])]
    low, high = axis[after - 1], axis[after]
    share = (value - low) / (high - low)
    return [(low, 1 - share), (high, share)]


def costs_from_file(path: Path) -> Costs:
    """The costs in a file, whatever they were measured for. Raises BadInputError when they cannot be read."""
    checks = [_reasons_against_points]
    return record_from_file(path, Costs, what="a cost table", schema=COSTS_SCHEMA, remedy=_REMEDY, checks=checks)


def _reasons_against_points(costs: Costs) -> Reasons:
    points = [(point.branches, point.window, point.prefix) for point in costs.points]
    full = math.prod(len(set(axis)) for axis in zip(*points, strict=True))
    if len(points) != full or len(set(points)) != full:
        yield (
            f"{len(points)} points, {len(points) - len(set(points))} of them repeated",
            "seconds at every combination of its branches, windows and prefixes, once",
        )
