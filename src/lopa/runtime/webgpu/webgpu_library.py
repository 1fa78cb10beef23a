"""ONNX Runtime's WebGPU plug-in: its registration, the adapters that it offers, and graphs on one of them."""

import importlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from lopa.runtime.device_families import ALLOW_SOFTWARE_GPU, FAMILIES, DeviceStatus, parse_device
from lopa.runtime.errors import MissingBackendError, raise_if_from_handler
from lopa.runtime.graph_encoding import encoded_model, encoded_node, encoded_value
from lopa.runtime.sessions.providers import ERRORS_ONLY, errors_only

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


Array = npt.NDArray[Any]

DEVICE = "webgpu"
"""ONNX Runtime's name of memory without a vendor, such as the plug-in's. "gpu" means NVIDIA's in builds for CUDA."""


def session_from_graph(
    graph: Path | bytes, device: Any, matrices: Mapping[str, Array] | None = None
) -> "ort.InferenceSession":  # quoted: doctor imports this file with any ONNX Runtime
    """Open a graph on `device`, an OrtEpDevice of the WebGPU plug-in. `matrices` are initializers without values.

    Integers of 64 bits stay on the device, so that no node of a portable graph runs on the processor. Raises ONNX
    Runtime's exceptions, also if the provider does not start.
    """
    options = ort.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.add_session_config_entry("ep.webgpuexecutionprovider.enableInt64", "1")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in (matrices or {}).items()}
    if values:
        options.add_external_initializers(list(values), list(values.values()))
    options.add_provider_for_devices([device], {})
    # ONNX Runtime would open the graph on the processor if the provider does not start.
    return ort.InferenceSession(graph if isinstance(graph, bytes) else str(graph), options, enable_fallback=0)


def can_run(device: Any) -> bool:
    """Return True if a graph opens on `device`. A software adapter is also offered where no Vulkan driver is."""
    x, y = (encoded_value(name, np.float32, (1,)) for name in "xy")
    graph = encoded_model([encoded_node("Neg", ["x"], "y")], [x], [y])
    try:
        session_from_graph(graph, device)
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return False
    return True


def softmax_is_right(device: Any, rows: int, columns: int) -> bool:
    """Return True if `device` computes the softmax of `rows` times `columns` equal float32 numbers.

    Kernels of the plug-in (0.4.0) leave out, without an error, what exceeds the largest buffer that an adapter binds.
    """
    forms = (("x", np.float32, (1, 1)), ("shape", np.int64, (2,)), ("axes", np.int64, (1,)))
    steps = (("Expand", "x", "shape"), ("Softmax", "wide"), ("ReduceSum", "softmax", "axes"))
    names = ("wide", "softmax", "sums")
    nodes = [encoded_node(step[0], step[1:], name) for step, name in zip(steps, names, strict=True)]
    sums = encoded_value("sums", np.float32, ("N", 1))
    session = session_from_graph(encoded_model(nodes, [encoded_value(*form) for form in forms], [sums]), device)
    values = {"x": np.zeros((1, 1), np.float32), "shape": np.array([rows, columns]), "axes": np.array([-1])}
    return bool(np.allclose(session.run(None, values)[0], 1, atol=0.1))


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
