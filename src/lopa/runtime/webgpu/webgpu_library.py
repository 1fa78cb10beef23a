"""ONNX Runtime's WebGPU plug-in: its registration, and the adapters that it offers."""

import importlib
import os
import threading
from collections.abc import Sequence
from typing import Any

import onnxruntime as ort

from lopa.runtime.device_families import ALLOW_SOFTWARE_GPU, FAMILIES, parse_device
from lopa.runtime.errors import MissingBackendError, raise_if_from_handler
from lopa.runtime.sessions.ort_log import errors_only

PROVIDER = "WebGpuExecutionProvider"
_PACKAGE = "onnxruntime_ep_webgpu"
_lock = threading.Lock()
_is_registered = False


def webgpu_adapters() -> Sequence[Any]:
    """Return the adapters as OrtEpDevice, after registering the plug-in once per process.

    A software adapter is offered only if ALLOW_SOFTWARE_GPU is 1 in the environment. Raises MissingBackendError if the
    plug-in is not installed or cannot be loaded.
    """
    with _lock:
        global _is_registered  # the plug-in belongs to the process
        if not _is_registered:
            _register()
            _is_registered = True
        return [each for each in ort.get_ep_devices() if each.ep_name == PROVIDER]


def is_software(adapter: Any) -> bool:
    """Return True if an adapter computes on the processor."""
    return bool(adapter.device.type == ort.OrtHardwareDeviceType.CPU)


def webgpu_device(device: str) -> Any:
    """Return the adapter of "webgpu:N" as an OrtEpDevice. Raises MissingBackendError if there is none."""
    number, adapters = parse_device(device, "webgpu").number, webgpu_adapters()
    if number < len(adapters):
        return adapters[number]
    software = (
        "" if os.environ.get(ALLOW_SOFTWARE_GPU) == "1" else ", or pass --allow-software-gpu for a software adapter"
    )
    raise MissingBackendError(
        f"device {device!r}, but WebGPU offers {len(adapters)} adapter{'' if len(adapters) == 1 else 's'}",
        expected="a GPU and its Vulkan driver, such as mesa-vulkan-drivers with libvulkan1",
        remedy=f"install the driver, and run lopa-export doctor{software}",
    )


def _register() -> None:
    remedy = FAMILIES["webgpu"].ability.remedy()
    if not hasattr(ort, "register_execution_provider_library"):
        raise MissingBackendError(
            f"ONNX Runtime {ort.__version__} has no plug-ins", expected="ONNX Runtime 1.31 or newer", remedy=remedy
        )
    try:
        plugin = importlib.import_module(_PACKAGE)
        with errors_only():  # it warns of every software adapter
            ort.register_execution_provider_library(PROVIDER, plugin.get_library_path())
    except ImportError as error:
        raise MissingBackendError(
            "the WebGPU plug-in of ONNX Runtime is not installed",
            expected="the package onnxruntime-ep-webgpu",
            remedy=remedy,
        ) from error
    except Exception as error:  # ONNX Runtime's exceptions have no common base class
        raise_if_from_handler(error)
        raise MissingBackendError(
            f"ONNX Runtime {ort.__version__} cannot load the WebGPU plug-in: {error}",
            expected="libvulkan.so.1, and an ONNX Runtime that fits the plug-in",
            remedy=f"install a Vulkan loader such as libvulkan1, and {remedy}",
        ) from error
