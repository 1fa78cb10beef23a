"""What a caller holds of a request that runs elsewhere: its events and its result, from any thread or asyncio loop.

Knows nothing of how it is decoded.
"""

import threading
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lopa.runtime.checked_values import MAX_SECONDS, check_float
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult

if TYPE_CHECKING:
    import asyncio


class RequestHandle:
    """One submitted request. Every iteration over it gives the events from the first on, and waits for new ones.

    Text and the end are kept for every reader. Of drafts, each of which is the whole answer again, only the newest is:
    a reader that comes late or is slow misses those before it, and the memory of a request is bounded by its answer.
    Not to be waited for on the thread that decodes, i.e. inside `on_step`: it would wait for itself.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._kept: list[tuple[int, Event]] = []
        """Texts and the end, each with its place among all events, ascending."""
        self._draft: tuple[int, DraftEvent] | None = None
        """The newest one, with its place."""
        self._count = 0
        """Events so far, drafts that are gone included."""
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
        return self._error is not None or (bool(self._kept) and isinstance(self._kept[-1][1], DoneEvent))

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the result, `timeout` seconds at most (None: as long as it takes).

        Raises TimeoutError when it is not there by then, which leaves the request running, or what made it fail.
        """
        if timeout is not None:
            timeout = check_float("timeout", timeout, min=0.0, max=MAX_SECONDS)
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the request is not done after {timeout} seconds")
        if self._error is not None:
            raise self._error
        _, last = self._kept[-1]
        assert isinstance(last, DoneEvent)
        return last.result

    def __iter__(self) -> Iterator[Event]:
        """Events as they come, the DoneEvent last. Raises what made the request fail."""
        place = 0
        while True:
            new, place, done = self._wait_for_events(place)
            yield from new
            if done:
                break
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Event]:
        """As `__iter__`, for asyncio: the loop is woken when there is something new."""
        async with aclosing(self.batches()) as batches:
            async for new in batches:
                for event in new:
                    yield event

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """As `__aiter__`, all at once that has come since the last time, at least one event."""
        with self._waking() as changed:
            place = 0
            while True:
                changed.clear()
                with self._changed:
                    (new, place), done = self.events_from(place), self.done
                if new:
                    yield new
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

    def events_from(self, place: int) -> tuple[list[Event], int]:
        """The events from `place` on (0: the first) that are kept, and the place behind them; waits for none."""
        with self._changed:
            events = self._kept[bisect_left(self._kept, place, key=itemgetter(0)) :]
            if self._draft is not None and self._draft[0] >= place:
                events.insert(bisect_left(events, self._draft[0], key=itemgetter(0)), self._draft)
            return [event for _, event in events], self._count

    def put_events(self, events: Sequence[Event]) -> None:
        """For who decodes: new events, the DoneEvent last of all."""
        if events:
            with self._changed:
                for event in events:
                    if isinstance(event, DraftEvent):
                        self._draft = self._count, event
                    else:
                        self._kept.append((self._count, event))
                    self._count += 1
                self._wake()

    def put_error(self, error: BaseException) -> None:
        """For who decodes: the request failed; no effect on one that has ended."""
        with self._changed:
            if not self.done:
                self._error = error
                self._wake()

    async def _awaited(self) -> GenerationResult:
        with self._waking(at_end=True) as changed:
            while not self.done:
                changed.clear()
                if not self.done:  # what came before `clear` would not wake
                    await changed.wait()
        return self.result(0)

    @contextmanager
    def _waking(self, *, at_end: bool = False) -> "Iterator[asyncio.Event]":
        """An event of the running loop that is set, from whatever thread, when there is something new, or the end."""
        import asyncio  # here, since most programs that decode do without it and it is slow to import

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if at_end and not self.done:
                return
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wakers.append(wake)
        try:
            yield changed
        finally:
            with self._changed:
                self._wakers.remove(wake)

    def _wait_for_events(self, place: int) -> tuple[list[Event], int, bool]:
        """As `events_from`, at least one event unless the request is done; and whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: self.done or self._count > place)
            return *self.events_from(place), self.done

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()
