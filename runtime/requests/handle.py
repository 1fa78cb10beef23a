"""What a caller holds of a request that runs elsewhere: its events and its result, from any thread or asyncio loop.

Knows nothing of how it is decoded.
"""

import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from lopa.runtime.checked_values import MOST_SECONDS, real_number
from lopa.runtime.requests.result import DoneEvent, Event, GenerationResult

if TYPE_CHECKING:
    import asyncio


class RequestHandle:
    """One submitted request. Every iteration over it gives all events from the first on, and waits for new ones.

    Not to be waited for on the thread that decodes, i.e. inside `on_step`: it would wait for itself.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: list[Event] = []
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []
        self._cancelled = False

    def cancel(self) -> None:
        """Ask for an early end: the result comes after the round that runs, with stop_reason "cancelled".

        No effect on a request that has ended.
        """
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called; the result says whether it came in time."""
        return self._cancelled

    @property
    def done(self) -> bool:
        """Whether the result, or the error, is there."""
        return self._error is not None or (bool(self._events) and isinstance(self._events[-1], DoneEvent))

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the result, `timeout` seconds at most (None: as long as it takes).

        Raises TimeoutError when it is not there by then, which leaves the request running, or what made it fail.
        """
        if timeout is not None:
            timeout = real_number("timeout", timeout, least=0.0, most=MOST_SECONDS)
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the request is not done after {timeout} seconds")
        if self._error is not None:
            raise self._error
        last = self._events[-1]
        assert isinstance(last, DoneEvent)
        return last.result

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, the DoneEvent last. Raises what made the request fail."""
        seen = 0
        while True:
            new, done = self._wait_beyond(seen)
            yield from new
            seen += len(new)
            if done:
                break
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Event]:
        """As `__iter__`, for asyncio: the loop is woken when there is something new."""
        with self._waking() as changed:
            seen = 0
            while True:
                changed.clear()
                with self._changed:
                    new, done = self.events_beyond(seen), self.done
                for event in new:
                    yield event
                seen += len(new)
                if done:
                    break
                await changed.wait()
        if self._error is not None:
            raise self._error

    def __await__(self) -> Generator[Any, None, GenerationResult]:
        """The result, for asyncio: `await handle`. Raises what made the request fail.

        A waiting that is cancelled or times out (asyncio.wait_for) leaves the request running; `cancel` ends it.
        """
        return self._awaited().__await__()

    def events_beyond(self, seen: int) -> list[Event]:
        """Those behind the first `seen` that are there by now; waits for none."""
        return self._events[seen:]

    def put_events(self, events: Sequence[Event]) -> None:
        """For who decodes: new events, the DoneEvent last of all."""
        if events:
            with self._changed:
                self._events.extend(events)
                self._wake()

    def put_error(self, error: BaseException) -> None:
        """For who decodes: the request failed; no effect on one that has ended."""
        with self._changed:
            if not self.done:
                self._error = error
                self._wake()

    async def _awaited(self) -> GenerationResult:
        with self._waking() as changed:
            while not self.done:
                changed.clear()
                if not self.done:  # what came before `clear` would not wake
                    await changed.wait()
        return self.result(0)

    @contextmanager
    def _waking(self) -> "Iterator[asyncio.Event]":
        """An event of the running loop that is set, from whatever thread, when there is something new."""
        import asyncio  # here, since most programs that decode do without it and it is slow to import

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wakers.append(wake)
        try:
            yield changed
        finally:
            with self._changed:
                self._wakers.remove(wake)

    def _wait_beyond(self, seen: int) -> tuple[list[Event], bool]:
        """The events behind the first `seen`, at least one unless the request is done; and whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self.done or len(self._events) > seen)
            return self.events_beyond(seen), self.done

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()
