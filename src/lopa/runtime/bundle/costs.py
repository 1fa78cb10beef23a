"""Cost table of one device, with measured seconds of a forward and interpolation between the measured points.

`lopa-export bench costs` measures it. The bundle has one file per device next to the manifest (`costs_name`).
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
from lopa.runtime.bundle.record import Reasons, Record, record_from_json
from lopa.runtime.device_families import spans_processes
from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file

COSTS_SCHEMA = 2
_MAX_SECONDS = 1e6
"""Upper bound of any measurement, in seconds (days)."""
_REMEDY = "measure again: lopa-export bench costs BUNDLE"


class ForwardCost(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One measured point: median seconds of a forward of one request that samples every row of its window."""

    branches: Annotated[int, Meta(ge=1, le=2**16)]
    window: Annotated[int, Meta(ge=1, le=2**24)]
    prefix: Annotated[int, Meta(ge=1, le=2**24)]
    seconds: Annotated[float, Meta(gt=0, le=_MAX_SECONDS)]


class DeviceCosts(Record, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Cost table of one device. Its points form a full grid over branches, window and prefix."""

    device: str
    machine: str
    """Name of the processor or accelerator, for information only."""
    threads: Annotated[int, Meta(ge=1, le=2**16)] | None
    weights_sha256: str
    """SHA-256 of the weights of the measured bundle."""
    measured: str
    """Date and time of the measurement, in ISO format."""
    host_seconds: Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]
    """Median host seconds of a round of one request with one branch, without its forward."""
    host_seconds_a_branch: Annotated[float, Meta(ge=0, le=_MAX_SECONDS)]
    """Additional host seconds per further branch."""
    points: Annotated[list[ForwardCost], Meta(min_length=1, max_length=100_000)]


def costs_name(device: str) -> str:
    """Return the file name of the cost table of `device`, e.g. costs.cpu.json or costs.cuda-0.json."""
    return f"costs.{device.replace(':', '-')}.json"


def costs_from_bundle(bundle: Bundle, device: str, threads: int | None) -> "CostTable":
    """Return the cost table measured for `bundle` on `device` with `threads`.

    Raises BadInputError if the table is missing or unreadable, or if its device, threads, contract or bundle differ.
    """
    path = bundle.path / costs_name(device)
    chosen, operator = _remedy(bundle, device, threads)
    if not path.is_file():
        received = f"branches 'auto', but the bundle's {path.name} does not exist"
        raise BadInputError(received, expected="a cost table for this device", remedy=chosen, operator=operator)
    remedy = f"{chosen}, or {operator}"
    text = bundle.content(path.name, expected="a cost table", remedy=remedy)
    costs = _costs_from_json(text, source=str(path), remedy=remedy)
    return CostTable(check_costs(costs, bundle, device, threads, source=path.name))


def _remedy(bundle: Bundle, device: str, threads: int | None) -> tuple[str, str]:
    """Return the remedy of a request, and the operator's: the full command that measures the missing table."""
    chosen = "set branches to a number"
    if spans_processes(device):
        return f"{chosen}: there is no cost table for ranks", ""
    devices = [word for name in device.split(",") for word in ("--device", name)]
    count = [] if threads is None else ["--threads", str(threads)]
    command = ["lopa-export", "bench", "costs", str(bundle.path), *devices, *count]
    return chosen, f"measure one: {shlex.join(command)} (a minute for a small model)"


def check_costs(costs: DeviceCosts, bundle: Bundle, device: str, threads: int | None, *, source: str) -> DeviceCosts:
    """Return `costs`. Raises BadInputError if they were measured for another device, thread count or bundle."""
    for found, expected in (
        (f"device {costs.device}", f"device {device}"),
        (_threads_text(costs.threads), _threads_text(threads)),
        (f"weights {costs.weights_sha256}", f"weights {bundle.manifest.weights_digest}"),
    ):
        if found != expected:
            chosen, operator = _remedy(bundle, device, threads)
            raise BadInputError(
                f"{source} was measured for {found}", expected=expected, remedy=chosen, operator=operator
            )
    return costs


def _threads_text(threads: int | None) -> str:
    return "the device's own number of threads" if threads is None else f"--threads {threads}"


@dataclass(frozen=True)
class CostTable:
    """Seconds of a forward by branches, window and prefix, interpolated from the measured points.

    Interpolation is linear between neighbors along each axis. Beyond the last point, time grows in proportion, because
    work grows at least linearly. Below the first point, the first point's time applies.
    """

    costs: DeviceCosts

    def seconds(self, branches: int, window: int, prefix: int) -> float:
        """Return the expected seconds of one forward. `prefix` counts rows of allocated cache."""
        sizes = (branches, window, prefix)
        if sizes not in self._cache:
            self._cache[sizes] = self._interpolated(sizes)
        return self._cache[sizes]

    def host_seconds(self, branches: int) -> float:
        """Return the expected seconds of a step without its forward."""
        return self.costs.host_seconds + (branches - 1) * self.costs.host_seconds_a_branch

    @cached_property
    def _cache(self) -> dict[tuple[int, int, int], float]:
        """Cached results of `seconds`. A decode calls it in every step, with few distinct sizes."""
        return {}

    def _interpolated(self, sizes: tuple[int, int, int]) -> float:
        total = 0.0
        shares = [_shares(axis, value) for axis, value in zip(self._axes, sizes, strict=True)]
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
    """Return the points of `axis` that approximate `value`, with their weights."""
    after = bisect.bisect_left(axis, value)
    if after == 0:
        return [(axis[0], 1.0)]
    if after == len(axis):
        return [(axis[-1], value / axis[-1])]
    low, high = axis[after - 1], axis[after]
    share = (value - low) / (high - low)
    return [(low, 1 - share), (high, share)]


def costs_from_file(path: Path) -> DeviceCosts:
    """Return the costs in a file, for any device or bundle. Raises BadInputError if they cannot be read."""
    return _costs_from_json(bytes_from_file(path, expected="a cost table", remedy=_REMEDY), source=str(path))


def _costs_from_json(text: bytes, *, source: str, remedy: str = _REMEDY) -> DeviceCosts:
    what, schema, checks = "a cost table", COSTS_SCHEMA, [_find_grid_errors]
    return record_from_json(text, DeviceCosts, source=source, what=what, schema=schema, remedy=remedy, checks=checks)


def _find_grid_errors(costs: DeviceCosts) -> Reasons:
    points = [(point.branches, point.window, point.prefix) for point in costs.points]
    full = math.prod(len(set(axis)) for axis in zip(*points, strict=True))
    if len(points) != full or len(set(points)) != full:
        yield (
            f"{len(points)} points, {len(points) - len(set(points))} of them repeated",
            "each combination of its branches, windows and prefixes exactly once",
        )
