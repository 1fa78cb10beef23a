"""A session with its own thread, and the jobs submitted to it since the last wait. Callers decide how to handle
failures.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from lopa.runtime.sessions.cpu_cores import cores_from_device
from lopa.runtime.sessions.device_worker import DeviceWorker, ThreadedSession, pin_thread
from lopa.runtime.sessions.session import Session

T = TypeVar("T")


class SessionThread:
    """A thread that runs all calls of `session`, in order of `submit`. A device with core numbers is bound to these
    cores.
    """

    def __init__(self, session: Session) -> None:
        """Start a thread for `session`, or use the session's existing thread."""
        if isinstance(session, ThreadedSession):
            self.session, self._worker = session.take_over()
        else:
            self.session, self._worker = session, DeviceWorker(f"lopa {session.device}")
        self._jobs: list[Future[Any]] = []
        cores = cores_from_device(session.device)
        if cores is not None:
            self.submit(partial(pin_thread, cores))

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after everything submitted before, without waiting for it."""
        future = self._worker.submit(work)
        self._jobs.append(future)
        return future

    def take_jobs(self) -> list[Future[Any]]:
        """Return the jobs submitted since the last call."""
        jobs, self._jobs = self._jobs, []
        return jobs

    def close(self) -> Future[None]:
        """Close the session and end the thread, after everything submitted before, without waiting."""
        future = self._worker.submit(self.session.close)
        self._worker.stop()
        return future
