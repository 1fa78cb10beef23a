"""Waits of threads and asyncio loops for a state that another thread changes, without a lock.

A signal handler may interrupt a wait anywhere, and wait for the same thread itself. With a lock, as in a Condition,
that thread would wait for the interrupted one.
"""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue


class Waiters:
    """Functions to call when the state has changed."""

    def __init__(self) -> None:
        self._wakes: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._wakes)

    def add(self, wake: Callable[[], None]) -> None:
        """Call `wake` in every `notify` from now on, on its thread."""
        self._wakes.append(wake)

    def remove(self, wake: Callable[[], None]) -> None:
        """Undo `add`."""
        self._wakes.remove(wake)

    def notify(self) -> None:
        """Wake everything that waits, after a change of the state."""
        for wake in tuple(self._wakes):
            wake()

    def wait_until(self, is_ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the state `is_ready`, at most `timeout` seconds. Return False if it is not."""
        latest = None if timeout is None else time.monotonic() + timeout
        news: SimpleQueue[None] = SimpleQueue()

        def wake() -> None:
            if is_ready():
                news.put(None)

        self.add(wake)
        try:
            while not is_ready():
                try:
                    news.get(timeout=None if latest is None else max(0.0, latest - time.monotonic()))
                except Empty:
                    break
            return is_ready()
        finally:
            self.remove(wake)
