"""A thread that runs the work of one device in order.

The thread is a daemon. A device that hangs can be abandoned and does not keep the process alive.
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
