"""A reply as server-sent events: parts of committed text, drafts on request, the end of each choice and errors."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from typing import cast

from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, DraftEvent, Event, TextEvent
from lopa.serve.answering.draft_fields import DraftFields, StepRecords
from lopa.serve.answering.reply import Reply, check_complete
from lopa.serve.answering.submission import Handles
from lopa.serve.chat.answer_parser import AnswerParser, Part
from lopa.serve.http.events import KEEP_ALIVE
from lopa.serve.protocols.choice import Choice, choice_from_parts
from lopa.serve.protocols.reply_format import StreamFormat

NumberedEvents = tuple[int, Sequence[Event] | Exception]
"""Index of a choice with its new events, or with the error that ended it."""


async def stream_from_reply(reply: Reply, handles: Handles, records: StepRecords) -> AsyncIterator[bytes]:
    """Yield the server-sent events of all choices in order of arrival. Events that arrive together form one part.

    An error is the last event, without [DONE].
    """
    written = cast(StreamFormat, reply.format)  # scores, which have no other, are never streamed
    form, decode_ids = handles[0].form, reply.service.decode_ids
    tokenizer = reply.service.engine.decoder.tokenizer
    drafts = [DraftFields(records, index, tokenizer) for index in range(len(handles))]
    parsers = [AnswerParser(form) for _ in handles]
    parts: list[list[Part]] = [[] for _ in handles]
    choices: dict[int, Choice] = {}

    def encode(index: int, new: Sequence[Part]) -> bytes:
        parts[index] += new
        return b"".join(written.part(index, part) for part in new)

    sent = b""  # not yielded yet
    try:
        if begin := written.begin(len(handles), handles[0].prompt_tokens):
            yield begin
        async for numbered in merge_events(handles, reply.service.limits.keep_alive_seconds):
            if numbered is None:
                yield KEEP_ALIVE
                continue
            index, events = numbered
            if isinstance(events, Exception):
                raise events
            for event in events:
                if isinstance(event, TextEvent):
                    sent += encode(index, parsers[index].feed(event))
                elif isinstance(event, DraftEvent):
                    sent += written.draft(index, drafts[index].of_event(event))
                else:
                    result = check_complete(event.result)
                    sent += encode(index, parsers[index].end())
                    choices[index] = choice = choice_from_parts(result, parts[index], form, decode_ids)
                    reply.count(choice)
                    sent += written.choice_ended(index, choice)
            if sent:
                yield sent
                sent = b""
        yield written.end([choices[index] for index in range(len(choices))])
    except Exception as error:  # the status line was sent long ago, so the error goes into the stream
        yield sent + written.error(reply.count_error(error))


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
