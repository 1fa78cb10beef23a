"""Choices of non-streamed requests, awaited for as long as the client stays connected."""

import asyncio
from typing import Any

from starlette.types import Receive

from lopa.runtime.requests.handle import RequestHandle
from lopa.runtime.requests.result import DoneEvent, GenerationResult, TextEvent
from lopa.serve.answering.submission import Submission
from lopa.serve.chat.answer_parser import AnswerForm, Part, merged_parts
from lopa.serve.http.api_error import unavailable
from lopa.serve.http.disconnect import watch_disconnect
from lopa.serve.protocols.choice import Choice, DecodeIds, count_reasoning_tokens


async def await_choices(submission: Submission, decode_ids: DecodeIds, receive: Receive) -> list[Choice] | None:
    """Return the choices in order, or None after the client disconnected, which cancels every request.

    Raises the error of a failed request, which cancels the others.
    """
    with watch_disconnect(receive) as disconnect:
        working = asyncio.create_task(_gather_choices(submission, decode_ids))
        try:
            futures: list[asyncio.Future[Any]] = [working, disconnect]
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
            return await working if working.done() else None
        finally:
            working.cancel()
            for handle in submission.handles:
                handle.cancel()  # no effect on ended requests


async def _gather_choices(submission: Submission, decode_ids: DecodeIds) -> list[Choice]:
    choices = (_complete_choice(handle, submission.form, decode_ids) for handle in submission.handles)
    return list(await asyncio.gather(*choices))


async def _complete_choice(handle: RequestHandle, form: AnswerForm, decode_ids: DecodeIds) -> Choice:
    """Return the choice of a handle. Raises ApiError when the server stopped before its end."""
    if form.is_plain:
        result = check_complete(await handle)
        return choice_from_parts(result, [result.text] if result.text else [], form, decode_ids)
    parser, parts = form.parser(), list[Part]()
    async for events in handle.batches():
        for event in events:
            if isinstance(event, TextEvent):
                parts += parser.feed(event)
            elif isinstance(event, DoneEvent):
                return choice_from_parts(check_complete(event.result), [*parts, *parser.end()], form, decode_ids)
    raise AssertionError("a request ended without a result")


def choice_from_parts(result: GenerationResult, parts: list[Part], form: AnswerForm, decode_ids: DecodeIds) -> Choice:
    """Return the choice of a complete result."""
    tokens = count_reasoning_tokens(result.token_ids, decode_ids, form.reasoning)
    return Choice(result, merged_parts(parts), tokens)


def check_complete(result: GenerationResult) -> GenerationResult:
    """Return `result`. Raises ApiError when it was cancelled: the engine closed while the client waited."""
    if result.stop_reason == "cancelled":
        raise unavailable("server stopped before the answer was complete", "not_ready")
    return result
