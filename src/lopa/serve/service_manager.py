"""Reports to the service manager that started the process: systemd with Type=notify and WatchdogSec.

Without NOTIFY_SOCKET in the environment nothing is sent.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from lopa.runtime.engine import Engine
from lopa.runtime.errors import BadInputError

READY = "READY=1"
STOPPING = "STOPPING=1"
_WATCHDOG = "WATCHDOG=1"
_BEATS = 4
"""Heartbeats within the time after which the service manager restarts the process."""
_LOG = logging.getLogger(__name__)


def send_state(state: str) -> None:
    """Send `state` to the service manager. A failure is logged."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(1.0)
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.send(state.encode())
    except OSError as error:
        _LOG.warning("%s not sent to NOTIFY_SOCKET %s: %s", state, address, error)


def watchdog_seconds() -> float | None:
    """Return the time after which a process without heartbeats is restarted, or None without a watchdog.

    Raises BadInputError for a WATCHDOG_USEC that is no positive whole number.
    """
    given = os.environ.get("WATCHDOG_USEC")
    if given is None or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    if not (given.isascii() and given.isdigit() and int(given)):
        raise BadInputError(
            f"WATCHDOG_USEC is {given!r}", expected="a positive number of microseconds", remedy="remove or correct it"
        )
    return int(given) / 1e6


async def send_heartbeats(engines: Callable[[], list[Engine]], seconds: float | None) -> None:
    """Send heartbeats as long as each engine that has requests completes rounds. Without `seconds`, send none.

    A forward that takes longer than `seconds` thus ends the process, and so does an event loop that hangs.
    """
    if seconds is None:
        return
    before: dict[Engine, int] = {}
    while True:
        status = {engine: engine.status for engine in engines()}
        if all(
            not (each.running or each.waiting) or before.get(engine) != each.rounds for engine, each in status.items()
        ):
            send_state(_WATCHDOG)
        before = {engine: each.rounds for engine, each in status.items()}
        await asyncio.sleep(seconds / _BEATS)
