"""OpenVINO's Python package: version check, import without telemetry, the one Core of a process, and its devices.

Device names are "openvino:CPU" and "openvino:GPU.1", optionally with ":bf16" or ":int8".
"""

import importlib
import importlib.util
import os
import re
import sys
import threading
from dataclasses import dataclass
from typing import Any, Literal, cast

from lopa.runtime.device_families import FAMILIES, DeviceStatus, find_device, parse_device, stages_of_device
from lopa.runtime.errors import MissingBackendError

_TELEMETRY = "openvino_telemetry"
_import_lock, _core_lock = threading.Lock(), threading.Lock()
_cores: dict[tuple[Any, int], Any] = {}
"""Cores by module and process. They are never freed (openvino_core)."""


def openvino_module(device: str) -> Any:
    """Return the package. Raises MissingBackendError for `device` if it is missing, broken or too old."""
    ability = FAMILIES["openvino"].ability
    required, remedy = ".".join(map(str, ability.min_version)), f"{ability.remedy()}, or use --device cpu"
    try:
        module = _import()
    except ImportError as error:
        raise MissingBackendError(
            f"device {device!r}, but OpenVINO cannot be imported: {error}",
            expected=f"OpenVINO {required} or later",
            remedy=remedy,
        ) from error
    version = str(getattr(module, "__version__", "unknown"))
    if version_numbers(version) < ability.min_version:
        raise MissingBackendError(
            f"device {device!r}, but the installed OpenVINO is {version}",
            expected=f"OpenVINO {required} or later, which reads graphs of opset 23",
            remedy=remedy,
        )
    return module


def openvino_core(openvino: Any) -> Any:
    """Return the Core of `openvino` in this process, which lives as long as the process.

    The CPU plugin of a Core gives the thread that loads it another stack for signal handlers, and frees that stack with
    the Core (SigAltStackSetup in OpenVINO 2026.4). The thread keeps using it unless it frees its Cores itself, in
    reverse order. The next signal then overwrites memory that may belong to a model.
    """
    with _core_lock:
        key = openvino, os.getpid()
        if key not in _cores:
            _cores[key] = openvino.Core()
        return _cores[key]


def version_numbers(version: str) -> tuple[int, int]:
    """Return year and release of a version such as "2026.4.1-22982-...", or (0, 0) for anything else."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _import() -> Any:
    """Import OpenVINO without its telemetry package, which would report the import.

    An application that imported OpenVINO earlier has made that decision itself.
    """
    with _import_lock:
        hidden = _TELEMETRY not in sys.modules and "openvino" not in sys.modules
        if hidden:
            sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # the documented way to make an import fail
        try:
            return importlib.import_module("openvino")
        finally:
            if hidden:
                del sys.modules[_TELEMETRY]


_FAMILY = "openvino"
Rounding = Literal["bf16", "int8"]


@dataclass(frozen=True)
class OpenVinoDevice:
    """Parts of an OpenVINO device name."""

    name: str
    """OpenVINO's name of the device: CPU, GPU, GPU.1, NPU."""
    rounding: Rounding | None
    """Reduced precision, or None for float32.

    With bf16, products may be computed in bfloat16. With int8, rows are rounded to 8 bits in products with 4-bit
    weights.
    """


def device_from_name(device: str) -> OpenVinoDevice:
    """Parse the name of an OpenVINO device. Raises BadInputError for any other name."""
    name, _, rounding = parse_device(device, _FAMILY).rest.partition(":")
    return OpenVinoDevice(name, cast(Rounding | None, rounding or None))


def rounds_to_bfloat16(device: str) -> bool:
    """Return True if `device` or one of its stages is an OpenVINO device that computes in bfloat16."""
    stages = map(find_device, stages_of_device(device))
    return any(stage and stage.family.name == _FAMILY and stage.rest.endswith(":bf16") for stage in stages)


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
        also = f"; also {device}:bf16 (rounded)" if bf16 else ""
        devices.append(DeviceStatus(device, f"ready (OpenVINO {openvino.__version__.split('-')[0]}){also}{untested}"))
    return devices
