"""The caller's side of a request: its events and its result, from any thread or asyncio loop."""

import copy
import time
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lopa.runtime.chat.prepared_chat import PLAIN, AnswerForm
from lopa.runtime.checked_values import MAX_SECONDS, check_float
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.runtime.state.answer_state import StopReason

if TYPE_CHECKING:
    import asyncio


@dataclass
class RequestTiming:
    """Moments of a request on time.perf_counter's clock; None before they happen. The engine writes them."""

    queued: float | None = None
    """The checked request joined the engine's queue."""
    admitted: float | None = None
    """The request left the queue for its first round. None if it ended before that."""
    prefilled: float | None = None
    """The first round ended. It computes the first window, and the prompt or what earlier pieces of it have left."""
    first_text: float | None = None
    """The first text was final."""
    ended: float | None = None
    """The result or the error was available."""


class Waiters(list[Callable[[], None]]):
    """Functions to call, on the thread that changes the state, when it has changed.

    There is no lock. A signal handler may interrupt a wait anywhere, and wait for the same thread itself. With a lock,
    as in a Condition, that thread would wait for the interrupted one.
    """

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


class RequestHandle:
    """A submitted request. Iterating yields its events from the first on, and waits for new ones.

    Several iterations may run; each receives all text and the end. A draft is the whole answer again, so only the
    newest one is stored. A slow reader misses older ones, and memory is bounded by the answer. Do not wait for a
    request inside `on_step`. It runs on the thread that decodes the request, which would wait for itself.

    An await that is cancelled or runs out (asyncio.wait_for), and an `async for` that is left, cancel the request
    unless something else waits for it. A handle that is dropped, and a `for` that is left, do not.
    """

    timing: RequestTiming
    """Moments of this request so far."""
    form: AnswerForm
    """Form of the answer: the reasoning and the calls of tools that its text may have."""

    prompt_tokens: int
    """Number of tokens of the prompt; 0 for a prompt that failed."""

    def __init__(self, form: AnswerForm = PLAIN, prompt_tokens: int = 0) -> None:
        self.form, self.prompt_tokens = form, prompt_tokens
        # No lock guards these attributes, as a signal handler may interrupt a reader and wait for the engine. One
        # thread writes: first an event, then the count, and `_done` last. Readers ignore events beyond the count.
        self.timing = RequestTiming()
        self._stored: list[tuple[int, Event]] = []
        """Texts and the end, each with its index among all events, ascending."""
        self._draft: tuple[int, DraftEvent] | None = None
        """Newest draft, with its index."""
        self._count = 0
        """Number of events so far, replaced drafts included."""
        self._error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._done = False
        self._waiters = Waiters()
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
        return self._done

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the result, at most `timeout` seconds (None: without limit).

        Raises TimeoutError if it takes longer; the request then continues. Otherwise raises the request's error, if
        any.
        """
        if timeout is not None:
            timeout = check_float("timeout", timeout, min=0.0, max=MAX_SECONDS)
        if not self._waiters.wait_until(lambda: self._done, timeout):
            raise TimeoutError(f"the request did not end within {timeout} seconds; it is still running")
        self._raise_error()
        _, last = self._stored[-1]
        assert isinstance(last, DoneEvent)
        return last.result

    def __iter__(self) -> Iterator[Event]:
        """Yield events as they arrive, the DoneEvent last. Raises the request's error."""
        index = 0
        done = False
        while not done:
            self._waiters.wait_until(partial(self._is_beyond, index))
            done = self._done  # before the events are read, so that none is left behind
            new, index = self.events_from(index)
            yield from new
        self._raise_error()

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Yield events as `__iter__` does, for asyncio."""
        async with aclosing(self.batches()) as batches:
            async for new in batches:
                for event in new:
                    yield event

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """Yield lists of the events since the previous list, at least one each, for asyncio."""
        with self._waking() as changed:
            index, done = 0, False
            while not done:
                await changed.wait()
                changed.clear()
                done = self._done
                new, index = self.events_from(index)
                if new:
                    yield new
        self._raise_error()

    def __await__(self) -> Generator[Any, None, GenerationResult]:
        """Wait for the result in asyncio: `await handle`. Raises the request's error.

        If the wait is cancelled or times out (asyncio.wait_for), so is the request; asyncio.shield(handle) prevents it.
        """
        return self._awaited().__await__()

    def events_from(self, index: int) -> tuple[list[Event], int]:
        """Return the stored events from index `index` on, counted from 0, and the next index, without waiting."""
        count, draft = self._count, self._draft  # in this order: a draft after `count` is read next time
        first, last = (bisect_left(self._stored, each, key=itemgetter(0)) for each in (index, count))
        events: list[tuple[int, Event]] = [*self._stored[first:last]]
        if draft is not None and index <= draft[0] < count:
            events.insert(bisect_left(events, draft[0], key=itemgetter(0)), draft)
        return [event for _, event in events], count

    def put_events(self, events: Sequence[Event]) -> None:
        """Add events, the DoneEvent last of all. The decoder calls this method."""
        for event in events:
            if isinstance(event, DraftEvent):
                self._draft = self._count, event
            else:
                self._stored.append((self._count, event))
                self._note_moment(event)
            self._count += 1
            self._done = self._done or isinstance(event, DoneEvent)
        if events:
            self._waiters.notify()

    def put_error(self, error: BaseException) -> None:
        """End the request with an error, unless it has ended. The decoder calls this method."""
        if not self._done:
            self._error, self._traceback = error, error.__traceback__
            self.timing.ended = time.perf_counter()
            self._done = True
            self._waiters.notify()

    async def _awaited(self) -> GenerationResult:
        with self._waking(at_end=True) as changed:
            await changed.wait()
        return self.result(0)

    @contextmanager
    def _waking(self, *, at_end: bool = False) -> "Iterator[asyncio.Event]":
        """Return an asyncio event that is set, from any thread, on new events, or with `at_end` only at the end. It is
        set at first if there are any. Leaving early cancels the request unless others wait for it."""
        import asyncio  # imported here because it is slow and most programs do not need it

        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            if self._done or not at_end:
                with suppress(RuntimeError):  # the loop was closed meanwhile
                    loop.call_soon_threadsafe(changed.set)

        self._waiters.append(wake)
        if self._done or (self._count and not at_end):
            changed.set()
        try:
            yield changed
        finally:
            self._waiters.remove(wake)
            if not self._done and not self._waiters:
                self.cancel()

    def _is_beyond(self, index: int) -> bool:
        return self._done or self._count > index

    def _raise_error(self) -> None:
        """Raise a copy of the request's error, if any. Its traceback then keeps no frames of earlier callers."""
        if self._error is None:
            return
        error = self._error
        with suppress(Exception):  # from a class whose arguments are not those of its constructor
            copied = copy.copy(error)
            if (type(copied), copied.args, str(copied)) == (type(error), error.args, str(error)):
                copied.__cause__, copied.__context__ = error.__cause__, error.__context__
                copied.__suppress_context__ = error.__suppress_context__
                error = copied
        raise error.with_traceback(self._traceback)

    def _note_moment(self, event: TextEvent | DoneEvent) -> None:
        if isinstance(event, DoneEvent):
            self.timing.ended = time.perf_counter()
        elif self.timing.first_text is None:
            self.timing.first_text = time.perf_counter()


def ending_handles(
    handles: Iterable[RequestHandle], deadline: float | None, reason: StopReason | None = None
) -> list[tuple[RequestHandle, StopReason]]:
    """Return which of a request's unfinished `handles` end now, with their reasons.

    All of them end with a `reason`, otherwise those that are cancelled, and all once the `deadline` has passed. It is
    on time.perf_counter's clock.
    """
    late: StopReason | None = "time_limit" if deadline is not None and time.perf_counter() >= deadline else None
    reasons = ((each, reason or ("cancelled" if each.cancelled else late)) for each in handles)
    return [(handle, why) for handle, why in reasons if why is not None]
