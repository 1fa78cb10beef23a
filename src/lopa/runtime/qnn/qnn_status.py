"""Status of this machine's Qualcomm NPU, for `lopa-export doctor`. This module opens no engine."""

import importlib.util

from lopa.runtime.device_families import FAMILIES, DeviceStatus
from lopa.runtime.install_hint import installed_version
from lopa.runtime.qnn.socs import soc_of_machine


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for the NPU or its emulator."""
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        return [DeviceStatus(family, FAMILIES[family].ability.remedy(), is_here=False)]
    chip = soc_of_machine() or "no Snapdragon: the emulator on x86-64, slow"
    return [DeviceStatus(family, f"onnxruntime-qnn {installed_version('onnxruntime-qnn')} is installed ({chip})")]
