"""A thread that drives one device: it runs what it is given, one after another, in the order given.

Does not know sessions. The thread is a daemon: one that never comes back (a device that hangs) can be left behind, and
does not keep the process from ending.
"""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class DeviceWorker:
    """The thread, and the queue before it."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_run, args=(self._work,), name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` after everything submitted before; the future gets its result or its exception.

        A future that is cancelled before has its work left out. After `stop` nothing is run any more, and the future
        stays open.
        """
        future: Future[T] = Future()
        self._work.put(partial(_complete, future, work))
        return future

    def stop(self) -> None:
        """End the thread after everything submitted before; does not wait for it."""
        self._work.put(None)


def keep_thread_on(cores: Sequence[int]) -> None:
    """Let the calling thread run on these cores only, where the system can do that (Linux)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def _complete(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:  # whatever it is: the one who waits must hear of it
        future.set_exception(error)
    else:
        future.set_result(result)


def _run(queue: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := queue.get()) is not None:
        work()
        del work  # what it holds may be large, and the next may be long in coming
