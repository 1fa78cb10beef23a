"""Events kept for a slow reader: all text and the newest draft."""

import asyncio
from typing import Any

from lopa.runtime.generation_config import GenerationConfig, resolve
from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, DraftEvent, GenerationResult, TextEvent
from lopa.serve.answering.stream import merge_events

RESULT = GenerationResult((1,), (2,), "text", 1, 1, 1, 1.0, "eos", 0.5, resolve(GenerationConfig()))


async def read_late(handle: RequestHandle, drafts: int) -> list[Any]:
    """Read the first events, let `drafts` drafts with a text each arrive, and read the rest."""
    handle.put_events([DraftEvent(0, "first")])
    events = merge_events((handle,), 60.0)
    seen = list((await anext(events))[1])
    for step in range(1, drafts + 1):
        handle.put_events([DraftEvent(step, str(step)), TextEvent(f"{step} ")])
        for _ in range(5):  # time for a reader to read ahead
            await asyncio.sleep(0)
    handle.put_events([DoneEvent(RESULT)])
    return seen + [event async for _, new in events for event in new]


def test_slow_reader_misses_drafts_but_no_text() -> None:
    seen = asyncio.run(read_late(RequestHandle(), 200))
    assert "".join(event.text for event in seen if isinstance(event, TextEvent)) == "".join(
        f"{step} " for step in range(1, 201)
    )
    drafts = [event.step for event in seen if isinstance(event, DraftEvent)]
    assert drafts[0] == 0
    assert drafts[-1] == 200
    assert len(drafts) <= 5
    assert isinstance(seen[-1], DoneEvent)


def test_pause_yields_none() -> None:
    async def first() -> Any:
        events = merge_events((RequestHandle(),), 0.01)
        try:
            return await anext(events)
        finally:
            await events.aclose()

    assert asyncio.run(first()) is None


def test_simultaneous_events_arrive_together() -> None:
    async def all_of(handle: RequestHandle) -> list[Any]:
        return [numbered async for numbered in merge_events((handle,), 60.0)]

    handle, first, last = RequestHandle(), TextEvent("1"), [TextEvent("2"), DoneEvent(RESULT)]
    handle.put_events([first])
    handle.put_events(last)
    assert asyncio.run(all_of(handle)) == [(0, [first, *last])]
