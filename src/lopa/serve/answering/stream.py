"""A reply as server-sent events: committed text, drafts on request, the end of each choice and errors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, GenerationResult, TextEvent
from lopa.serve.answering.complete_results import check_complete
from lopa.serve.answering.reply import Reply
from lopa.serve.answering.submission import Handles
from lopa.serve.answering.winners import WinningBranches
from lopa.serve.http.api_error import api_error_from
from lopa.serve.http.events import DONE, KEEP_ALIVE, encode_event
from lopa.serve.openai.response_shapes import finish_reason_from_result, logprobs_from_result, lopa_fields_from_result

NumberedEvents = tuple[int, Sequence[Event] | Exception]
"""Index of a choice with its new events, or with the error that ended it."""


async def stream_from_reply(reply: Reply, handles: Handles, winners: WinningBranches) -> AsyncIterator[bytes]:
    """Yield the server-sent events of all choices in order of arrival. Events that arrive together form one part.

    An error is the last event, without [DONE].
    """
    parts = _Parts(reply, winners)
    if reply.shape.first is not None:
        yield b"".join(parts.chunk(index, reply.shape.first) for index in range(len(handles)))
    results: dict[int, GenerationResult] = {}
    waiting = reply.service.limits.keep_alive_seconds
    async for numbered in merge_events(handles, waiting):
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
                    results[index] = check_complete(event.result)
                    reply.count(event.result)
                part += parts.of_event(index, event)
        except Exception as error:  # the status line was sent long ago, so the error goes into the stream
            yield part + encode_event(api_error_from(error).body)
            return
        yield part
    ordered = [results[index] for index in range(len(handles))]
    usage = encode_event({**parts.head, "choices": [], "usage": reply.usage(ordered)}) if parts.with_usage else b""
    yield usage + DONE


class _Parts:
    """Formatter of the events of one stream."""

    def __init__(self, reply: Reply, winners: WinningBranches) -> None:
        self._reply, self._winners = reply, winners
        self.head = reply.head(reply.shape.chunk)
        self.with_usage = reply.requested.stream is not None and reply.requested.stream.usage

    def of_event(self, index: int, event: Event) -> bytes:
        shape = self._reply.shape
        if isinstance(event, TextEvent):
            return self.chunk(index, shape.part(event.text))
        if isinstance(event, DraftEvent):
            winner = self._winners.of_step(index, event.step)
            lopa_fields = {
                "draft": event.text,
                "step": event.step,
                "unmasked": event.unmasked,
                "decided": event.unmasked,  # former name, for one minor version
                **winner,
            }
            return self.chunk(index, {**shape.part(""), "lopa": lopa_fields})
        result = event.result
        end = {
            **shape.part(""),
            "logprobs": logprobs_from_result(shape, result, self._reply.service.decode_ids),
            "finish_reason": finish_reason_from_result(result),
            "lopa": lopa_fields_from_result(result),
        }
        return self.chunk(index, end)

    def chunk(self, index: int, fields: dict[str, Any]) -> bytes:
        choice = {"index": index, "logprobs": None, "finish_reason": None, **fields}
        usage = {"usage": None} if self.with_usage else {}
        return encode_event({**self.head, "choices": [choice], **usage})


async def merge_events(handles: Handles, seconds: float) -> AsyncGenerator[NumberedEvents | None, None]:
    """Yield the events of all handles with the handle's index, and None after `seconds` without any.

    The next events of a handle are fetched only after its previous ones were taken. A slow reader therefore misses
    drafts and gets the newest one.
    """
    updates: asyncio.Queue[NumberedEvents] = asyncio.Queue(maxsize=1)
    readers = [asyncio.create_task(_read(index, handle, updates)) for index, handle in enumerate(handles)]
    left = len(handles)
    try:
        while left:
            numbered = None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    numbered = await updates.get()
            if numbered is not None and _ends_choice(numbered[1]):
                left -= 1
            yield numbered
    finally:
        for reader in readers:
            reader.cancel()


def _ends_choice(events: Sequence[Event] | Exception) -> bool:
    return isinstance(events, Exception) or isinstance(events[-1], DoneEvent)


async def _read(index: int, handle: RequestHandle, updates: "asyncio.Queue[NumberedEvents]") -> None:
    try:
        async for events in handle.batches():
            await updates.put((index, events))
    except Exception as error:  # the request failed
        await updates.put((index, error))
