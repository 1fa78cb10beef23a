"""Open one session on the devices that a user names."""

from collections.abc import Sequence
from contextlib import ExitStack

from lopa.runtime.bundle import Bundle
from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int, shown
from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import DEFAULT_DEVICES
from lopa.runtime.multi_device.branch_session import STALL_SECONDS, BranchParallelSession
from lopa.runtime.sessions.cpu_cores import check_devices, cores_from_device
from lopa.runtime.sessions.session import Session, check_canvases, open_session

MAX_THREADS = 1024
"""Upper limit of threads per device, whose thread pool is created at once."""


def devices_from_arguments(devices: str | Sequence[str], device: str | None) -> Sequence[str]:
    """Return the names in `devices`, one name or several, or in `device`, one name. Raises BadInputError for both."""
    if device is None:
        return [devices] if isinstance(devices, str) else devices
    if devices is not DEFAULT_DEVICES:
        raise BadInputError(
            f"device {shown(device)} and devices {shown(devices)}", expected="one of the two", remedy="remove one"
        )
    return [device]


def session_from_devices(
    bundle: Bundle,
    devices: Sequence[str],
    *,
    threads: int | None = None,
    stall_seconds: float = STALL_SECONDS,
) -> Session:
    """Open `bundle` on every device, with `threads` on each. Several devices share the branches of a forward.

    A single device runs on the caller's thread. A device with core numbers runs on its own thread, bound to these
    cores. `stall_seconds` limits a forward on a device with its own thread.

    Raises BadInputError for incompatible devices and for a limit that is not positive. It also raises the errors of
    `open_session`. Sessions that were opened are then closed.
    """
    check_devices(devices)
    stall_seconds = check_float("device_timeout", stall_seconds, min=0.0, max=MAX_SECONDS, above=True)
    if threads is not None:
        threads = check_int("threads", threads, min=1, max=MAX_THREADS)
    check_canvases(bundle, devices)
    if len(devices) == 1 and cores_from_device(devices[0]) is None:
        return open_session(bundle, devices[0], threads=threads)
    with ExitStack() as opened:
        sessions = []
        for device in devices:
            sessions.append(open_session(bundle, device, threads=threads))
            opened.callback(sessions[-1].close)
        opened.pop_all()
    return BranchParallelSession(sessions, stall_seconds=stall_seconds)
