"""Status of this machine's Ascend NPUs, for `lopa-export doctor`. This module opens no engine."""

import importlib.util

from lopa.runtime.device_families import DeviceStatus


def find_devices(family: str) -> list[DeviceStatus]:
    """Return one status line for all NPUs."""
    is_here = importlib.util.find_spec("acl") is not None
    missing = "needs pyACL, which comes with CANN, and an NPU (docs/how-to/engines.md)"
    state = "pyACL is installed" if is_here else missing
    return [DeviceStatus(f"{family}:N", state, is_here)]
