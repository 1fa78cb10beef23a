"""Triton's instance groups: how many engines, and on which devices each. Pure; knows no bundle and no machine."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lopa.runtime.checked_values import check_int, shown
from lopa.runtime.device_families import find_device, parse_device, stages_of_device
from lopa.runtime.errors import BadInputError
from lopa.runtime.sessions.cpu_cores import check_devices

Kind = Literal["KIND_CPU", "KIND_GPU", "KIND_MODEL"]
MAX_INSTANCES = 256
"""Of one group: each is a process with the model in its memory."""


@dataclass(frozen=True)
class InstanceGroup:
    """So many engines alike; Triton starts a process for each, on each GPU if there are GPUs."""

    name: str
    kind: Kind
    """KIND_MODEL: devices of which Triton knows nothing, or several for one engine."""
    devices: str
    """Of one engine, with commas between; of KIND_GPU the family alone, since Triton says which GPU."""
    gpus: tuple[int, ...]
    """None unless KIND_GPU."""
    count: int
    """Engines; of KIND_GPU on each GPU."""


def groups_of_devices(devices: Sequence[str], instances: int) -> tuple[InstanceGroup, ...]:
    """A group for each of `devices` ("cuda:0,cuda:1": two of one engine), except that GPUs of one family are one group.

    Raises BadInputError for devices that cannot go together, for mpi, and for a number of instances that cannot be.
    """
    count = check_int("--instances", instances, min=1, max=MAX_INSTANCES)
    groups: dict[str, InstanceGroup] = {}
    for text in devices:
        check_devices_of_engine(text)
        if list(devices).count(text) > 1:
            raise BadInputError(
                f"--device {text} twice",
                expected="each instance group once",
                remedy="give --instances N for several engines on one device",
            )
        device = find_device(text)
        if device is None or not device.family.is_nvidia_gpu:
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


def check_devices_of_engine(text: str) -> tuple[str, ...]:
    """The devices of one engine from "cpu:0-3" or "cuda:0,cuda:1". Raises BadInputError for any that cannot be opened
    together in one process, or have no name that a backend has."""
    devices = tuple(text.split(","))
    check_devices(devices)
    names = [parse_device(stage) for device in devices for stage in stages_of_device(device)]
    if any(name.family.spans_processes for name in names):
        raise BadInputError(
            f"device {shown(text)}",
            expected="devices of one process: Triton starts the processes",
            remedy="name them, with commas between those that one engine shares, e.g. --device cuda:0,cuda:1",
        )
    return devices


def devices_of_instance(
    instance: str, device: int, groups: Mapping[str, str], parameters: Mapping[str, str]
) -> tuple[str, ...]:
    """The devices of the engine in the instance called `instance`, which Triton put on GPU number `device`.

    `groups` are the kinds by the names of the groups, `parameters` the devices by these names. Raises BadInputError for
    a group that no parameter is about, and as `check_devices_of_engine`.
    """
    group = instance.rpartition("_")[0]  # Triton numbers the instances of a group
    if group not in parameters:
        raise BadInputError(
            f"the instance {instance} of a group without a parameter that says its devices",
            expected="a group among " + ", ".join(parameters),
            remedy=f'add to config.pbtxt: parameters {{ key: "device.{group}" value {{ string_value: "cpu" }} }}',
        )
    text = parameters[group]
    return check_devices_of_engine(f"{text}:{device}" if groups.get(group) == "KIND_GPU" else text)
