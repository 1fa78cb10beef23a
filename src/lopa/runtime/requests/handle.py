"""The caller's side of a request: its events and its result, from any thread or asyncio loop."""

import threading
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lopa.runtime.checked_values import MAX_SECONDS, check_float
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.requests.timing import RequestTiming

if TYPE_CHECKING:
    import asyncio


class RequestHandle:
    """A submitted request. Iterating yields its events from the first on, and waits for new ones.

    Several iterations may run; each receives all text and the end. A draft is the whole answer again, so only the
    newest one is stored. A slow reader misses older ones, and memory is bounded by the answer. Do not wait for a
    request inside `on_step`. It runs on the thread that decodes the request, which would wait for itself.
    """

    timing: RequestTiming
    """Moments of this request so far."""

    def __init__(self) -> None:
        self.timing = RequestTiming()
        self._changed = threading.Condition()
        self._stored: list[tuple[int, Event]] = []
        """Texts and the end, each with its index among all events, ascending."""
        self._draft: tuple[int, DraftEvent] | None = None
        """Newest draft, with its index."""
        self._count = 0
        """Number of events so far, replaced drafts included."""
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], None]] = []
        self._cancelled = False

    def cancel(self) -> None:
        """End the request early: the result follows after the current round, with stop_reason "cancelled".

        This has no effect on a request that has ended.
        """
        self._cancelled = True

    @property
    def cancelled(self) -> bool:
        """True once `cancel` was called. The result's stop_reason is "cancelled" if the call was in time."""
        return self._cancelled

    @property
    def done(self) -> bool:
        """True once the result or the error is available."""
        return self._error is not None or (bool(self._stored) and isinstance(self._stored[-1][1], DoneEvent))

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the result, at most `timeout` seconds (None: without limit).

        Raises TimeoutError if it takes longer; the request then continues. Otherwise raises the request's error, if
        any.
        """
        if timeout is not None:
            timeout = check_float("timeout", timeout, min=0.0, max=MAX_SECONDS)
        with self._changed:
            if not self._changed.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"the request did not end within {timeout} seconds; it is still running")
        if self._error is not None:
            raise self._error
        _, last = self._stored[-1]
        assert isinstance(last, DoneEvent)
        return last.result

    def __iter__(self) -> Iterator[Event]:
        """Yield events as they arrive, the DoneEvent last. Raises the request's error."""
        index = 0
        while True:
            new, index, done = self._wait_for_events(index)
            yield from new
            if done:
                break
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events as `__iter__` does, for asyncio."""
        async with aclosing(self.batches()) as batches:
            async for new in batches:
                for event in new:
                    yield event

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """Yield lists of the events since the previous list, at least one each, for asyncio."""
        with self._waking() as changed:
            index = 0
            while True:
                changed.clear()
                with self._changed:
                    (new, index), done = self.events_from(index), self.done
                if new:
                    yield new
                if done:
                    break
                await changed.wait()
        if self._error is not None:
            raise self._error

    def __await__(self) -> Generator[Any, None, GenerationResult]:
        """Wait for the result in asyncio: `await handle`. Raises the request's error.

        If the wait is cancelled or times out (asyncio.wait_for), the request continues. `cancel` ends it.
        """
        return self._awaited().__await__()

    def events_from(self, index: int) -> tuple[list[Event], int]:
        """Return the stored events from index `index` on, counted from 0, and the next index, without waiting."""
        with self._changed:
            events = self._stored[bisect_left(self._stored, index, key=itemgetter(0)) :]
            if self._draft is not None and self._draft[0] >= index:
                events.insert(bisect_left(events, self._draft[0], key=itemgetter(0)), self._draft)
            return [event for _, event in events], self._count

    def put_events(self, events: Sequence[Event]) -> None:
        """Add events, the DoneEvent last of all. The decoder calls this method."""
        if events:
            with self._changed:
                for event in events:
                    if isinstance(event, DraftEvent):
                        self._draft = self._count, event
                    else:
                        self._stored.append((self._count, event))
                        self._note_moment(event)
                    self._count += 1
                self._wake()

    def put_error(self, error: BaseException) -> None:
        """End the request with an error, unless it has ended. The decoder calls this method."""
        with self._changed:
            if not self.done:
                self._error = error
                self.timing.ended = time.perf_counter()
                self._wake()

    async def _awaited(self) -> GenerationResult:
        with self._waking(at_end=True) as changed:
            while not self.done:
                changed.clear()
                if not self.done:  # events that arrived before `clear` would be missed
                    await changed.wait()
        return self.result(0)

    @contextmanager
    def _waking(self, *, at_end: bool = False) -> "Iterator[asyncio.Event]":
        """Return an asyncio event that is set, from any thread, on new events, or with `at_end` only at the end."""
        import asyncio  # imported here because it is slow and most programs do not need it

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if at_end and not self.done:
                return
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        with self._changed:
            self._wakers.append(wake)
        try:
            yield changed
        finally:
            with self._changed:
                self._wakers.remove(wake)

    def _wait_for_events(self, index: int) -> tuple[list[Event], int, bool]:
        """Return the result of `events_from`, with at least one event or `done`, and True if the request is done."""
        with self._changed:
            self._changed.wait_for(lambda: self.done or self._count > index)
            return *self.events_from(index), self.done

    def _note_moment(self, event: TextEvent | DoneEvent) -> None:
        if isinstance(event, DoneEvent):
            self.timing.ended = time.perf_counter()
        elif self.timing.first_text is None:
            self.timing.first_text = time.perf_counter()

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()
