"""Names of WebGPU's adapters in doctor, and the memory that they are bound by, without a driver."""

from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest
from onnxruntime.capi.onnxruntime_inference_collection import get_vendor_id_for_device_type

from lopa.runtime.webgpu import webgpu_library
from lopa.runtime.webgpu.webgpu_library import DEVICE


def _adapter(kind: Any = ort.OrtHardwareDeviceType.GPU, **fields: Any) -> Any:
    empty: dict[str, Any] = {"vendor": "", "vendor_id": 0, "device_id": 0, "metadata": {}}
    return SimpleNamespace(device=SimpleNamespace(type=kind, **{**empty, **fields}))


@pytest.mark.parametrize(
    ("adapter", "name"),
    [
        (_adapter(metadata={"Description": "Intel(R) Arc(TM) A770"}, vendor="Intel"), "Intel(R) Arc(TM) A770"),
        (_adapter(vendor="Apple"), "Apple"),
        (_adapter(vendor="Intel", vendor_id=0x8086, device_id=0x56A0), "Intel, device 0x56a0"),
        (_adapter(vendor_id=0x10DE, device_id=0x2330, metadata={"Discrete": "1"}), "NVIDIA, device 0x2330"),
        (_adapter(vendor_id=0x10005), "vendor 0x10005"),
        (_adapter(), "GPU without a name"),
        (_adapter(ort.OrtHardwareDeviceType.CPU, vendor="AMD", vendor_id=0x1022), "software, on the processor"),
    ],
)
def test_an_adapter_is_named_by_the_fields_that_exist(adapter: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webgpu_library, "webgpu_adapters", lambda: [adapter])
    monkeypatch.setattr(webgpu_library, "can_run", lambda _: True)
    (status,) = webgpu_library.find_devices("webgpu")
    assert (status.name, status.state) == ("webgpu:0", f"ready ({name})")


def test_memory_is_bound_by_a_name_that_means_no_vendor() -> None:
    """Builds for CUDA read "gpu" as memory of NVIDIA, and then find no copy to the plug-in's."""
    assert get_vendor_id_for_device_type(DEVICE) == ort.OrtDeviceVendorId.NONE  # None would mean the build's own
    device = ort.OrtDevice.make(DEVICE, 0)._get_c_device()
    assert device.vendor_id() == ort.OrtDeviceVendorId.NONE
    assert device.device_type() == ort.OrtDevice.make("gpu", 0)._get_c_device().device_type()
