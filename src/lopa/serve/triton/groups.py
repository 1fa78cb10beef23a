"""Triton's instance groups: the number of engines and the devices of each. This module has no side effects and depends
on no bundle or machine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.runtime.checked_values import check_int
from lopa.runtime.device_families import find_device, full_device_name
from lopa.runtime.errors import BadInputError
from lopa.serve.server_settings import check_server_devices

Kind = Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL"]
MAX_INSTANCES = 256
"""Maximum instances of a group. Each is a process with the model in its memory."""


@dataclass(frozen=True)
class InstanceGroup:
    """Group of equal engines. Triton starts a process for each, on each GPU of the group if it has GPUs."""

    name: str
    kind: Kind
    """Triton's kind. KIND_MODEL means devices that Triton does not manage, or several devices for one engine."""
    devices: str
    """Devices of one engine, comma-separated. For KIND_GPU this is the family only, since Triton assigns the GPU."""
    gpus: tuple[int, ...]
    """GPU numbers; empty unless KIND_GPU."""
    count: int
    """Number of engines, or of engines per GPU for KIND_GPU."""


def groups_from_devices(devices: Sequence[str], instances: int) -> tuple[InstanceGroup, ...]:
    """Return a group for each of `devices` ("cuda:0,cuda:1" means two devices of one engine).

    GPUs of one family form one group. Raises BadInputError for incompatible devices, for mpi, and for an invalid number
    of instances.
    """
    count = check_int("--instances", instances, min=1, max=MAX_INSTANCES)
    groups: dict[str, InstanceGroup] = {}
    for text in devices:
        parse_engine_devices(text)
        if [*map(full_device_name, devices)].count(full_device_name(text)) > 1:
            raise BadInputError(
                f"--device {text} twice",
                expected="each device once",
                remedy="use --instances N for several engines on one device",
            )
        device = find_device(text)
        if device is None or not device.family.is_nvidia_gpu or device.uses_tf32:  # a group has no suffixes
            name = re.sub(r"[^A-Za-z0-9]+", "_", text)
            kind: Kind = "KIND_CPU" if device is not None and device.is_processor else "KIND_MODEL"
            group = InstanceGroup(name, kind, text, (), count)
        else:
            family = device.family.name
            name = family.replace("-", "_")
            before = groups[name].gpus if name in groups else ()
            group = InstanceGroup(name, "KIND_GPU", family, (*before, device.number), count)
        groups[name] = group
    return tuple(groups.values())


def parse_engine_devices(text: str) -> tuple[str, ...]:
    """Return the devices of one engine from a text such as "cpu:0-3" or "cuda:0,cuda:1".

    Raises BadInputError for devices that one process cannot open together, and for unknown names.
    """
    devices = tuple(text.split(","))
    check_server_devices(devices)
    return devices


def devices_for_instance(
    instance: str, device: int, groups: Mapping[str, str], parameters: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the devices of the engine of instance `instance`, which Triton put on GPU number `device`.

    `groups` has the kinds by group name, and `parameters` has the devices by group name. Raises BadInputError for a
    group without a parameter, and for devices that `parse_engine_devices` rejects.
    """
    group = instance.rpartition("_")[0]  # Triton numbers the instances of a group
    if group not in parameters:
        raise BadInputError(
            f"instance {instance} belongs to group {group!r}, whose devices no parameter names",
            expected="a group among " + ", ".join(parameters),
            remedy=f'add to config.pbtxt parameters {{ key: "device.{group}" value {{ string_value: "cpu" }} }}',
        )
    text = parameters[group]
    return parse_engine_devices(f"{text}:{device}" if groups.get(group) == "KIND_GPU" else text)
