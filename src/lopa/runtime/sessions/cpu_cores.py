"""CPU devices as sets of cores. "cpu" is the whole processor, "cpu:2" is one core, and "cpu:0-3" is four cores.

This module handles names and numbers only. The caller passes the available cores.
"""

from collections.abc import Collection, Sequence
from itertools import combinations

from lopa.runtime.checked_values import shown
from lopa.runtime.device_families import (
    find_device,
    parse_device,
    spans_processes,
    stages_of_device,
    unknown_device,
    uses_all_cores,
)
from lopa.runtime.errors import BadInputError

MAX_DEVICES = 256
"""Maximum number of devices per decoder, counting each pipeline stage."""


def cores_from_device(device: str) -> tuple[int, ...] | None:
    """Return the cores of `device` in ascending order, or None for "cpu" and other devices."""
    found = find_device(device)
    if found is None or found.family.name != "cpu" or not found.rest:
        return None
    first, _, last = found.rest.partition("-")
    return tuple(range(int(first), int(last or first) + 1)) or None


def check_cpu_device(device: str, available: Collection[int]) -> None:
    """Raise BadInputError unless `device` is "cpu" or names `available` cores only."""
    cores = cores_from_device(device)
    if parse_device(device, "cpu").rest and cores is None:
        raise unknown_device(device, "cpu")
    missing = [core for core in cores or () if core not in available]
    if missing:
        raise BadInputError(
            f"device {device!r}, but this process has no core {_join(missing)}",
            expected=f"cores among {_join(sorted(available))}",
            remedy="name available cores; taskset or a container may restrict them",
        )


def check_devices(devices: Sequence[str]) -> None:
    """Raise BadInputError for an empty list, and for devices that share hardware."""
    is_list = isinstance(devices, Sequence) and not isinstance(devices, str)
    if not is_list or not all(isinstance(device, str) for device in devices) or not len(devices):
        raise BadInputError(
            f"invalid devices {shown(devices)}",
            expected="a list of at least one device",
            remedy='pass a list, e.g. devices=["cpu"]',
        )
    count = sum(len(stages_of_device(device)) for device in devices)
    if count > MAX_DEVICES:
        raise BadInputError(
            f"too many devices and stages: {count}", expected=f"at most {MAX_DEVICES}", remedy="name fewer devices"
        )
    for first, second in combinations(devices, 2):
        conflicts = (_conflict(one, other) for one in stages_of_device(first) for other in stages_of_device(second))
        conflict = next((conflict for conflict in conflicts if conflict is not None), None)
        if conflict is None:
            continue
        raise BadInputError(
            conflict,
            expected="devices without shared hardware",
            remedy="name each device once, and give CPU devices separate cores: --device cpu:0 --device cpu:1",
        )


def _conflict(first: str, second: str) -> str | None:
    """Return the reason why two devices or pipeline stages cannot be used together, or None."""
    cores, others = cores_from_device(first), cores_from_device(second)
    if first == second:
        return f"device {first!r} twice"
    one, other = find_device(first), find_device(second)
    if one and other and one.family is other.family and one.family.has_numbers and one.number == other.number:
        return f"devices {first!r} and {second!r} are the same"
    if cores and others and set(cores) & set(others):
        return f"devices {first!r} and {second!r} share core {_join(sorted(set(cores) & set(others)))}"
    wholes = [device for device in (first, second) if uses_all_cores(device)]
    if len(wholes) == 2 or (wholes and (cores or others)):
        return f"devices {first!r} and {second!r} conflict: {wholes[0]} has every core"
    jobs = [device for device in (first, second) if spans_processes(device)]
    if jobs:
        return f"devices {first!r} and {second!r} conflict: {jobs[0]} is all ranks of a job"
    return None


def _join(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))
