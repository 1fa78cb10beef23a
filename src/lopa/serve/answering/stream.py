"""A reply as a stream: committed text as it comes, drafts if they are wanted, the ends, and errors on the way."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.serve.answering.reply import Reply
from lopa.serve.answering.submission import Handles
from lopa.serve.answering.whole import check_not_cut
from lopa.serve.answering.winners import WinningBranches
from lopa.serve.http.api_error import api_error_of
from lopa.serve.http.events import DONE, KEEP_ALIVE, event_of
from lopa.serve.openai.answer import finish_of_result, logprobs_of_result, ours_of_result

Numbered = tuple[int, Sequence[Event] | Exception]
"""What came of an answer with its number: events, or what made it fail."""


async def stream_of_reply(reply: Reply, handles: Handles, winners: WinningBranches) -> AsyncIterator[bytes]:
    """Server-sent events of all answers, mixed as they come; those that come together are one part.

    An error is the last event, without [DONE].
    """
    parts = _Parts(reply, winners)
    if reply.shape.first is not None:
        yield b"".join(parts.chunk(index, reply.shape.first) for index in range(len(handles)))
    results: dict[int, GenerationResult] = {}
    waiting = reply.service.limits.keep_alive_seconds
    async for numbered in events_of_handles(handles, waiting):
        if numbered is None:
            yield KEEP_ALIVE
            continue
        index, events = numbered
        part = b""
        try:
            if isinstance(events, Exception):
                raise events
            for event in events:
                if isinstance(event, DoneEvent):
                    results[index] = check_not_cut(event.result)
                    reply.count(event.result)
                part += parts.of_event(index, event)
        except Exception as error:  # the status was sent long ago: whatever it is, the client hears of it here
            yield part + event_of(api_error_of(error).body)
            return
        yield part
    ordered = [results[index] for index in range(len(handles))]
    usage = event_of({**parts.head, "choices": [], "usage": reply.usage(ordered)}) if parts.with_usage else b""
    yield usage + DONE


class _Parts:
    """The parts of one stream."""

    def __init__(self, reply: Reply, winners: WinningBranches) -> None:
        self._reply, self._winners = reply, winners
        self.head = reply.head(reply.shape.chunk)
        self.with_usage = reply.asked.stream is not None and reply.asked.stream.usage

    def of_event(self, index: int, event: Event) -> bytes:
        shape = self._reply.shape
        if isinstance(event, TextEvent):
            return self.chunk(index, shape.part(event.text))
        if isinstance(event, DraftEvent):
            winner = self._winners.of_step(index, event.step)
            ours = {"draft": event.text, "step": event.step, "decided": event.decided, **winner}
            return self.chunk(index, {**shape.part(""), "lopa": ours})
        result = event.result
        end = {
            **shape.part(""),
            "logprobs": logprobs_of_result(shape, result, self._reply.service.text_of_ids),
            "finish_reason": finish_of_result(result),
            "lopa": ours_of_result(result),
        }
        return self.chunk(index, end)

    def chunk(self, index: int, fields: dict[str, Any]) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **fields}
        usage = {"usage": None} if self.with_usage else {}
        return event_of({**self.head, "choices": [choice], **usage})


async def events_of_handles(handles: Handles, seconds: float) -> AsyncGenerator[Numbered | None, None]:
    """Events of all handles, with the handle's number, and None whenever nothing has come for `seconds`.

    Nothing is fetched of a handle before what came from it is taken: a slow reader misses drafts, and what is kept for
    it is the newest one.
    """
    news: asyncio.Queue[Numbered] = asyncio.Queue(maxsize=1)
    readers = [asyncio.create_task(_read(index, handle, news)) for index, handle in enumerate(handles)]
    left = len(handles)
    try:
        while left:
            numbered = None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    numbered = await news.get()
            if numbered is not None and _is_last(numbered[1]):
                left -= 1
            yield numbered
    finally:
        for reader in readers:
            reader.cancel()


def _is_last(events: Sequence[Event] | Exception) -> bool:
    return isinstance(events, Exception) or isinstance(events[-1], DoneEvent)


async def _read(index: int, handle: RequestHandle, news: "asyncio.Queue[Numbered]") -> None:
    try:
        async for events in handle.batches():
            await news.put((index, events))
    except Exception as error:  # its request failed
        await news.put((index, error))
