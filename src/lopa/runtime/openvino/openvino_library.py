"""OpenVINO's Python package: version check, import without telemetry, and the one Core of a process."""

import importlib
import os
import re
import sys
import threading
from typing import Any

from lopa.runtime.device_families import FAMILIES
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
