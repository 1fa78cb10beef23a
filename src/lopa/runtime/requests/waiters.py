"""Waits of threads and asyncio loops for a state that another thread changes, without a lock.

A signal handler may interrupt a wait anywhere, and wait for the same thread itself. With a lock, as in a Condition,
that thread would wait for the interrupted one.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Waiters(list[Callable[[], None]]):
    """Functions to call, on the thread that changes the state, when it has changed."""

    def notify(self) -> None:
        """Wake everything that waits, after a change of the state."""
        for wake in tuple(self):
            wake()

    def wait_until(self, is_ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the state `is_ready`, at most `timeout` seconds. Return False if it is not."""
        latest = None if timeout is None else time.monotonic() + timeout
        news: SimpleQueue[None] = SimpleQueue()

        def wake() -> None:
            if is_ready():
                news.put(None)

        self.append(wake)
        try:
            while not is_ready():
                try:
                    news.get(timeout=None if latest is None else max(0.0, latest - time.monotonic()))
                except Empty:
                    break
            return is_ready()
        finally:
            self.remove(wake)
