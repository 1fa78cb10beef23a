"""ONNX Runtime's plug-in for QNN: import, registration, options of a session on its NPU, and its status here."""

import importlib
import importlib.util
import threading
from typing import Any

import onnxruntime

from lopa.runtime.device_families import FAMILIES, DeviceStatus
from lopa.runtime.errors import MissingBackendError
from lopa.runtime.install_hint import installed_version
from lopa.runtime.qnn.qnn_manifest import QnnSoc, soc_of_machine

_lock = threading.Lock()
_registered: set[str] = set()
"""Names under which this process has registered the plug-in."""


def qnn_module() -> Any:
    """Return the package onnxruntime_qnn. Raises MissingBackendError if it is missing or broken."""
    try:
        return importlib.import_module("onnxruntime_qnn")
    except ImportError as error:
        raise MissingBackendError(
            f"onnxruntime-qnn cannot be imported: {error}",
            expected="ONNX Runtime's plug-in for Qualcomm NPUs",
            remedy=FAMILIES["qnn"].ability.remedy(),
        ) from error


def sdk_version(module: Any) -> str:
    """Return the version of the QNN SDK in the package, e.g. 2.51.0."""
    return str(getattr(module.build_and_package_info, "qnn_version", "unknown"))


def session_options(
    module: Any, soc: QnnSoc
) -> "onnxruntime.SessionOptions":  # quoted: doctor imports this file with any ONNX Runtime
    """Return options with every node on the NPU of `soc`, or in the emulator on x86-64.

    Registers the plug-in once per process. Raises MissingBackendError if it offers no device.
    """
    with _lock:
        if module.EP_NAME not in _registered:
            onnxruntime.register_execution_provider_library(module.EP_NAME, module.get_library_path())
            _registered.add(module.EP_NAME)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == module.EP_NAME]
    if not devices:
        raise MissingBackendError(
            f"onnxruntime-qnn {module.__version__} offers no device here",
            expected="a Qualcomm NPU, or x86-64 Linux, where the package has an emulator",
            remedy="install the NPU's driver, or use --device cpu",
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # QNN logs warnings for every graph; errors are raised
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_provider_for_devices(
        devices[:1],
        {
            "backend_path": module.get_qnn_htp_path(),
            "soc_model": str(soc.soc_model),
            "htp_arch": str(soc.htp_arch),
            "enable_htp_fp16_precision": "1",
        },
    )
    return options


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for the NPU or its emulator."""
    if importlib.util.find_spec("onnxruntime_qnn") is None:
        return [DeviceStatus(family, FAMILIES[family].ability.remedy(), is_here=False)]
    chip = soc_of_machine() or "no Snapdragon: the emulator on x86-64, slow"
    return [DeviceStatus(family, f"onnxruntime-qnn {installed_version('onnxruntime-qnn')} is installed ({chip})")]
