"""A session with a fault at one numbered call, as a stand-in for a failing device."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from lopa.runtime.contract import Statistics
from lopa.runtime.sessions.session import Session

Manner = Literal["raises", "hangs", "answers nonsense"]


@dataclass(frozen=True)
class Failure:
    """Call number `call` (from 1) of `method` fails, and every later call of any method raises."""

    method: str
    call: int
    manner: Manner = "raises"


class FailingDevice:
    """A session that counts its calls and fails as `failure` says, if given."""

    def __init__(self, session: Session, device: str, failure: Failure | None = None) -> None:
        self._session = session
        self.device = device
        self._failure = failure
        self.calls: dict[str, int] = {}
        self.failed = False
        self._awake = threading.Event()

    def wake(self) -> None:
        """End a hanging call."""
        self._awake.set()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._session, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            self.calls[name] = self.calls.get(name, 0) + 1
            if name == "close":
                return method()
            if self.failed:
                raise OSError(f"{self.device} is gone")
            if self._failure is None or (name, self.calls[name]) != (self._failure.method, self._failure.call):
                return method(*arguments, **named)
            self.failed = True
            if name == "wait" and self._failure.manner != "answers nonsense":
                self._session.release(*arguments)  # as after every wait that fails
            if self._failure.manner == "raises":
                raise OSError(f"{self.device} broke in {name}")
            if self._failure.manner == "hangs":
                self._awake.wait(600)
                raise OSError(f"{self.device} woke up")
            return _nonsense(method(*arguments, **named))

        return call


def _nonsense(statistics: Statistics) -> Statistics:
    return replace(statistics, topk_ids=statistics.topk_ids[:0])


@contextmanager
def failing_devices(sessions: list[Session], failures: dict[int, Failure]) -> Iterator[list[FailingDevice]]:
    """Yield the sessions as "device 0", "device 1" and so on, with their `failures`. Hanging calls end on exit."""
    devices = [FailingDevice(session, f"device {i}", failures.get(i)) for i, session in enumerate(sessions)]
    try:
        yield devices
    finally:
        for device in devices:
            device.wake()
