"""Status of the devices that OpenVINO lists on this machine, for `lopa-export doctor`. This module opens no bundle."""

import importlib.util

from lopa.runtime.device_families import DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.openvino.openvino_library import openvino_core, openvino_module


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line per device. Importing OpenVINO takes a fraction of a second."""
    try:
        openvino = openvino_module(f"{family}:CPU")
    except MissingBackendError as error:
        state = f"{error.received.split(', but ')[-1]}: {error.remedy}"
        return [DeviceStatus(f"{family}:NAME", state, importlib.util.find_spec("openvino") is not None)]
    core = openvino_core(openvino)
    devices = []
    for name in core.available_devices:
        device = f"{family}:{name}"
        bf16 = "BF16" in map(str, core.get_property(name, "OPTIMIZATION_CAPABILITIES"))
        untested = "" if name == "CPU" else ", untested (docs/how-to/devices.md)"
        also = f"; also {device}:bf16 (rounded) and {device}:auto (the fastest)" if bf16 else ""
        devices.append(DeviceStatus(device, f"ready (OpenVINO {openvino.__version__.split('-')[0]}){also}{untested}"))
    return devices
