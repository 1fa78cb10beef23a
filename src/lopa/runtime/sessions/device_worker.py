"""A thread that runs the work of one device in order.

The thread is a daemon. A device that hangs can be abandoned and does not keep the process alive.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from lopa.runtime.sessions.cpu_cores import cores_from_device
from lopa.runtime.sessions.session import Session
from lopa.runtime.sessions.tickets import Ticket
from lopa.runtime.sessions.wrapped_session import WrappedSession

T = TypeVar("T")


class DeviceWorker:
    """Thread of one device, with its queue of work."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_run, args=(self._work,), name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after all work submitted earlier. The future gets its result or exception.

        Work is skipped if its future is cancelled first. Work submitted after `stop` never runs, and its future stays
        pending.
        """
        future: Future[T] = Future()
        self._work.put(partial(_complete, future, work))
        return future

    def stop(self) -> None:
        """End the thread after everything submitted before, without waiting."""
        self._work.put(None)


def pin_thread(cores: Sequence[int]) -> None:
    """Pin the calling thread to these cores, if the system supports it (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _complete(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # any exception must reach the waiting caller
        future.set_exception(error)
    else:
        future.set_result(result)


def _run(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # free it before the next wait, it may be large


class ThreadedSession(WrappedSession):
    """Session whose calls run on its own thread. `open_inner` opens the inner session there."""

    def __init__(self, device: str, open_inner: Callable[[], Session], worker: DeviceWorker | None = None) -> None:
        """Open the inner session on a new thread, or on that of `worker`. Raises any exception of `open_inner`."""
        self._worker = worker or DeviceWorker(f"lopa {device}")
        self._device, self._closed = device, False
        try:
            super().__init__(self._worker.submit(open_inner).result())
        except BaseException:
            self._worker.stop()
            raise

    @property
    def device(self) -> str:
        """Device name as given by the user."""
        return self._device

    def release(self, ticket: Ticket) -> None:
        """Call Session.release. The call has no effect after close()."""
        if not self._closed:
            super().release(ticket)

    def free(self, request: int) -> None:
        """Call Session.free. The call has no effect after close()."""
        if not self._closed:
            super().free(request)

    def close(self) -> None:
        """Close the inner session on the thread. Closing twice is allowed."""
        if self._closed:
            return
        closing = self._worker.submit(self._inner.close)
        self._closed = True
        self._worker.stop()
        closing.result()

    def take_over(self) -> tuple[Session, DeviceWorker]:
        """Return the inner session and its thread to a new owner. This session then counts as closed."""
        self._check_open()
        self._closed = True
        return self._inner, self._worker

    def _run(self, work: Callable[[Session], T]) -> T:
        self._check_open()
        return self._worker.submit(partial(work, self._inner)).result()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError(f"session on {self._device} used after close(); open a new one")


class SessionThread:
    """A thread that runs all calls of `session`, in order of `submit`. A device with core numbers is bound to these
    cores. It keeps the jobs submitted since the last `take_jobs`. Callers decide how to handle failures.
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
