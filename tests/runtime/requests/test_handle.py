"""Handles without an engine: events seen by threads and asyncio, their order, and when waits end."""

import asyncio
import gc
import random
import threading
import time
from typing import Any

import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent

RESULT = GenerationResult((1,), (2,), "ab", 1, 1, 4, 1.0, "eos", 0.5, resolve(GenerationConfig()))
EVENTS: list[Event] = [TextEvent("a"), TextEvent("b"), DoneEvent(RESULT)]


def put_one_by_one(handle: RequestHandle, events: list[Event]) -> threading.Thread:
    def put() -> None:
        for event in events:
            time.sleep(0.01)
            handle.put_events([event])

    thread = threading.Thread(target=put)
    thread.start()
    return thread


def test_every_reader_gets_every_event_in_order() -> None:
    handle = RequestHandle()
    seen: list[list[Event]] = []
    readers = [threading.Thread(target=lambda: seen.append(list(handle))) for _ in range(3)]
    for reader in readers:
        reader.start()
    writer = put_one_by_one(handle, EVENTS)
    assert handle.result() is RESULT
    for thread in [*readers, writer]:
        thread.join()
    assert seen == [EVENTS] * 3
    assert list(handle) == EVENTS
    assert handle.done


def test_an_error_follows_earlier_events() -> None:
    handle = RequestHandle()
    handle.put_events(EVENTS[:1])
    handle.put_error(ValueError("wrong"))
    handle.put_error(ValueError("too late"))
    reader = iter(handle)
    assert next(reader) == EVENTS[0]
    with pytest.raises(ValueError, match="wrong"):
        next(reader)
    with pytest.raises(ValueError, match="wrong"):
        handle.result()

    async def read() -> list[Event]:
        seen: list[Event] = []
        try:
            async for event in handle:
                seen.append(event)
        except ValueError as error:
            assert str(error) == "wrong"  # noqa: PT017 (as above)
            return seen
        raise AssertionError

    assert asyncio.run(read()) == EVENTS[:1]


def test_a_handle_can_be_awaited() -> None:
    async def main() -> None:
        handle = RequestHandle()
        writer = put_one_by_one(handle, EVENTS)
        assert await handle is RESULT
        assert await handle is RESULT  # a handle can be awaited again
        assert await asyncio.wait_for(handle, 5) is RESULT
        assert await asyncio.gather(handle, handle) == [RESULT, RESULT]
        writer.join()
        assert not len(handle._waiters)

        failed = RequestHandle()
        failed.put_error(ValueError("wrong"))
        with pytest.raises(ValueError, match="wrong"):
            await failed

    asyncio.run(main())


@pytest.mark.parametrize("how", ["wait_for", "cancel", "async for"])
def test_a_wait_that_ends_early_cancels_the_request(how: str) -> None:
    async def first(handle: RequestHandle) -> Event:
        async for event in handle:
            return event
        raise AssertionError

    async def main() -> None:
        handle = RequestHandle()
        handle.put_events(EVENTS[:1])
        if how == "wait_for":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(handle, 0.01)
        elif how == "cancel":
            waiting = asyncio.ensure_future(handle)
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        else:
            assert await first(handle) == EVENTS[0]
            await asyncio.sleep(0.01)  # the loop closes the iterator
        assert not len(handle._waiters)
        assert handle.cancelled
        assert not handle.done
        handle.put_events(EVENTS[1:])
        assert await handle is RESULT

    asyncio.run(main())


class FormattedError(Exception):
    """An exception that is not made from its `args`."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")


@pytest.mark.parametrize("error", [ValueError("wrong"), OSError(2, "gone", "file"), SystemExit(3), FormattedError(5)])
def test_an_error_is_raised_again_with_the_first_traceback(error: BaseException) -> None:
    handle = RequestHandle()
    error.__cause__ = KeyError("cause")
    handle.put_error(error)
    raised = []
    for _ in range(3):
        with pytest.raises(type(error)) as caught:
            handle.result()
        raised.append((str(caught.value), len(caught.traceback), str(caught.value.__cause__)))
    assert raised == [(str(error), raised[0][1], "'cause'")] * 3
    assert isinstance(error, FormattedError) or error.__traceback__ is None  # it keeps no caller's frames


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1", True, 10**400, float("inf")])
def test_invalid_timeouts(timeout: Any) -> None:
    with pytest.raises(BadInputError, match="timeout"):
        RequestHandle().result(timeout)


def live_drafts() -> int:
    gc.collect()
    return sum(type(each) is DraftEvent for each in gc.get_objects())  # isinstance would load lazy objects


def test_a_slow_reader_gets_all_text_and_only_the_newest_draft() -> None:
    handle, before = RequestHandle(), live_drafts()
    reader = iter(handle)
    handle.put_events([TextEvent("0"), DraftEvent(0, "0")])
    assert [next(reader), next(reader)] == [TextEvent("0"), DraftEvent(0, "0")]
    for step in range(1, 1000):
        handle.put_events([TextEvent(str(step)), DraftEvent(step, "x" * step)])
    assert live_drafts() - before == 2  # the newest draft, and the draft that the reader got
    texts: list[Event] = [TextEvent(str(step)) for step in range(1000)]
    newest, end = DraftEvent(999, "x" * 999), [TextEvent("end"), DoneEvent(RESULT)]
    handle.put_events(end)
    assert list(reader) == [*texts[1:], newest, *end]
    assert list(handle) == [*texts, newest, *end]
    assert handle.result(0) is RESULT


def test_random_readers_miss_nothing_but_drafts_that_were_replaced() -> None:
    rng = random.Random(5)
    for _ in range(50):
        handle, put, seen, place = RequestHandle(), list[Event](), list[Event](), 0
        for step in range(30):
            event = DraftEvent(step, "d") if rng.random() < 0.5 else TextEvent(str(step))
            handle.put_events([event])
            put.append(event)
            if rng.random() < 0.2:
                new, place = handle.events_from(place)
                assert sum(isinstance(each, DraftEvent) for each in new) <= 1
                seen += new
        seen += handle.events_from(place)[0]
        left = iter(put)
        assert all(event in left for event in seen)  # in order, none twice
        assert [each for each in seen if isinstance(each, TextEvent)] == [e for e in put if isinstance(e, TextEvent)]
        drafts = [each for each in put if isinstance(each, DraftEvent)]
        assert not drafts or drafts[-1] in seen
