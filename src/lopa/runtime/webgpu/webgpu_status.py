"""Status of the adapters that WebGPU reaches, for `lopa-export doctor`. This module opens no bundle."""

from typing import Any

import onnxruntime as ort

from lopa.runtime.device_families import DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.webgpu.webgpu_graph import can_run
from lopa.runtime.webgpu.webgpu_library import is_software, webgpu_adapters


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line per adapter, or one that says what is missing."""
    try:
        adapters = webgpu_adapters()
    except MissingBackendError as error:
        return [DeviceStatus(f"{family}:N", f"{error.received}: {error.remedy}", is_here=False)]
    if not adapters:
        state = "no GPU with a Vulkan driver; --allow-software-gpu also finds a software one"
        return [DeviceStatus(f"{family}:N", state, is_here=False)]
    return [DeviceStatus(f"{family}:{number}", _state(each), can_run(each)) for number, each in enumerate(adapters)]


def _state(adapter: Any) -> str:
    if not can_run(adapter):
        return "no Vulkan driver, such as mesa-vulkan-drivers with libvulkan1"
    return f"ready ({'software, on the processor' if is_software(adapter) else _name(adapter.device)})"


def _name(device: Any) -> str:
    """Return the name of an OrtHardwareDevice, or what ONNX Runtime knows of it. On Linux it knows only PCI ids."""
    vendors = {each.value: each.name for each in ort.OrtDeviceVendorId if each}
    vendor = device.vendor or vendors.get(device.vendor_id, device.vendor_id and f"vendor {device.vendor_id:#06x}")
    ids = ", ".join(filter(None, (vendor, device.device_id and f"device {device.device_id:#06x}")))
    return device.metadata.get("Description") or ids or "GPU without a name"
