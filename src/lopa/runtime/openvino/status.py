"""Devices that OpenVINO lists on this machine, for `lopa-export doctor`. Opens no bundle."""

import importlib.util

from lopa.runtime.device_families import DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.openvino.library import openvino_module


def find_devices(family: str) -> list[DeviceStatus]:
    """Return a line for each device. Importing OpenVINO takes a part of a second."""
    try:
        openvino = openvino_module(f"{family}:CPU")
    except MissingBackendError as error:
        state = f"{error.received.split(', but ')[-1]}: {error.remedy}"
        return [DeviceStatus(f"{family}:NAME", state, importlib.util.find_spec("openvino") is not None)]
    core = openvino.Core()
    devices = []
    for name in core.available_devices:
        device = f"{family}:{name}"
        bf16 = "BF16" in map(str, core.get_property(name, "OPTIMIZATION_CAPABILITIES"))
        ran = "" if name == "CPU" else ", never run by us (docs/how-to/devices.md)"
        also = f"; {device}:bf16 too, rounded, and {device}:auto, the faster" if bf16 else ""
        devices.append(DeviceStatus(device, f"ready (OpenVINO {openvino.__version__.split('-')[0]}){also}{ran}"))
    return devices
