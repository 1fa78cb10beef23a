"""OpenVINO's Python package: found, new enough, and imported without its reports. Opens nothing."""

import importlib
import re
import sys
import threading
from typing import Any

from lopa.runtime.device_families import FAMILIES
from lopa.runtime.errors import MissingBackendError

_TELEMETRY = "openvino_telemetry"
_importing = threading.Lock()


def openvino_module(device: str) -> Any:
    """The package. Raises MissingBackendError for `device` when it is absent, cannot be loaded or is too old."""
    ability = FAMILIES["openvino"].ability
    wanted, remedy = ".".join(map(str, ability.min_version)), f"{ability.remedy()}, or use --device cpu"
    try:
        module = _imported()
    except ImportError as error:
        raise MissingBackendError(
            f"device {device!r}, but OpenVINO cannot be imported: {error}",
            expected=f"OpenVINO {wanted} or later",
            remedy=remedy,
        ) from error
    version = str(getattr(module, "__version__", "unknown"))
    if version_numbers(version) < ability.min_version:
        raise MissingBackendError(
            f"device {device!r}, but OpenVINO here is {version}",
            expected=f"OpenVINO {wanted} or later, which reads graphs of opset 23",
            remedy=remedy,
        )
    return module


def version_numbers(version: str) -> tuple[int, int]:
    """Year and release of "2026.4.1-22982-..."; (0, 0) for what is no version."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return (0, 0) if found is None else (int(found[1]), int(found[2]))


def _imported() -> Any:
    """Nothing is reported: OpenVINO sends that it was imported if it finds its telemetry, so it is not to find it.

    An application that imported OpenVINO before has decided that for itself.
    """
    with _importing:
        hidden = _TELEMETRY not in sys.modules and "openvino" not in sys.modules
        if hidden:
            sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # the documented way to make an import fail
        try:
            return importlib.import_module("openvino")
        finally:
            if hidden:
                del sys.modules[_TELEMETRY]
