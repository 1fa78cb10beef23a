"""From the devices that a user names to one session. Knows no backend and no decoding rule."""

from collections.abc import Sequence
from contextlib import ExitStack

from lopa.runtime.bundle import Bundle
from lopa.runtime.checked_values import MAX_SECONDS, check_float, check_int
from lopa.runtime.contract.timeline import Timeline
from lopa.runtime.errors import BadInputError
from lopa.runtime.parallel.branch_session import STALL_SECONDS, BranchParallelSession
from lopa.runtime.sessions.cpu_cores import check_devices, cores_from_device
from lopa.runtime.sessions.session import Session, open_session

MAX_THREADS = 1024
"""Of one device: a thread pool is made of them before anything is computed."""


def session_from_devices(
    bundle: Bundle,
    devices: Sequence[str],
    *,
    threads: int | None = None,
    stall_seconds: float = STALL_SECONDS,
    timeline: Timeline | None = None,
) -> Session:
    """Open `bundle` on every device, with `threads` on each; several of them share the branches of a forward.

    One device alone is its own session, driven by the caller's thread, unless it is named as cores: then a thread that
    stays on them drives it. `stall_seconds` is how long a device that has a thread may take for a forward. The stages
    of pipelines tell `timeline` when they work.

    Raises BadInputError for devices that cannot go together and for a limit that is not positive, otherwise as
    `open_session`; what was opened is closed then.
    """
    check_devices(devices)
    stall_seconds = check_float("a device's time limit", stall_seconds, min=0.0, max=MAX_SECONDS, above=True)
    if timeline is not None and not isinstance(timeline, Timeline):
        raise BadInputError(
            f"a timeline of type {type(timeline).__name__}", expected="a Timeline, or None", remedy="e.g. Timeline()"
        )
    if threads is not None:
        threads = check_int("threads", threads, min=1, max=MAX_THREADS)
    if len(devices) == 1 and cores_from_device(devices[0]) is None:
        return open_session(bundle, devices[0], threads=threads, timeline=timeline)
    with ExitStack() as opened:
        sessions = []
        for device in devices:
            sessions.append(open_session(bundle, device, threads=threads, timeline=timeline))
            opened.callback(sessions[-1].close)
        opened.pop_all()
    return BranchParallelSession(sessions, stall_seconds=stall_seconds)
