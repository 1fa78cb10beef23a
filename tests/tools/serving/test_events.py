"""Parsing of streams by the soak test: any split, and every kind of error."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tools.serving.events import (
    BadStreamError,
    StreamedAnswers,
    StreamedMessage,
    StreamedResponse,
    events_of_parts,
)

STREAM = b': keep-alive\n\nevent: x\ndata: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'


async def parts_of(text: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(text), size):
        yield text[start : start + size]


async def events(text: bytes, size: int) -> list[bytes]:
    return [data async for data in events_of_parts(parts_of(text, size))]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_events_do_not_depend_on_the_parts(size: int) -> None:
    assert asyncio.run(events(STREAM, size)) == [b'{"a": 1}', b'{"b": 2}', b"[DONE]"]


def test_an_incomplete_event_is_an_error() -> None:
    with pytest.raises(BadStreamError, match="an incomplete event"):
        asyncio.run(events(STREAM[:-1], 10))


def chunk(text: str = "", *, number: str = "1", finish: str | None = None, **ours: Any) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": finish, **({"lopa": ours} if ours else {})}
    return json.dumps({"id": number, "choices": [choice]}).encode()


def added(*data: bytes) -> StreamedAnswers:
    answers = StreamedAnswers()
    for each in data:
        answers.add(each)
    return answers


def test_an_answer_accumulates() -> None:
    answers = added(chunk("1 "), chunk(draft="1 +░"), chunk("+ 1"), chunk(finish="stop", steps=3), b"[DONE]")
    assert answers.whole
    assert answers.drafts == 1
    assert answers.choices() == [{"index": 0, "text": "1 + 1", "finish_reason": "stop", "lopa": {"steps": 3}}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((b"[DONE]", chunk("1")), "after"),
        ((chunk(finish="stop"), chunk("1")), "finished choice"),
        ((chunk("1"), chunk("2", number="2")), "two ids"),
        ((chunk("1"), chunk(draft="2░")), "does not begin"),
        ((b'{"error": {"message": "no"}}',), "an error"),
    ],
    ids=["after the end", "after its end", "another answer's", "another draft", "an error"],
)
def test_invalid_events_are_errors(data: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(BadStreamError, match=message):
        added(*data)


LOPA = {"stop_reason": "eos"}
MESSAGE: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "m"}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "so"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "ping", "lopa": {}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f", "input": {}}},
    {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'}},
    {"type": "content_block_stop", "index": 1},
    {"type": "message_delta", "delta": {"stop_reason": "tool_use", "stop_sequence": None}, "lopa": LOPA},
    {"type": "message_stop"},
]
RESPONSE: list[dict[str, Any]] = [
    {"type": "response.created", "response": {"id": "r"}},
    {"type": "response.output_item.added", "item": {"type": "message"}},
    {"type": "response.output_text.delta", "output_index": 0, "delta": "so"},
    {"type": "response.lopa_draft"},
    {
        "type": "response.completed",
        "response": {
            "id": "r",
            "status": "completed",
            "output": [{"type": "message", "content": [{"text": "so"}]}],
            "lopa": LOPA,
        },
    },
]


def message_of(events: list[dict[str, Any]]) -> StreamedMessage:
    message = StreamedMessage()
    for event in events:
        message.add(json.dumps(event).encode())
    return message


def response_of(events: list[dict[str, Any]]) -> StreamedResponse:
    response = StreamedResponse()
    for number, event in enumerate(events):
        response.add(json.dumps({"sequence_number": number, **event}).encode())
    return response


def test_a_message_accumulates() -> None:
    message = message_of(MESSAGE)
    assert (message.whole, message.drafts, message.id) == (True, 1, "m")
    (choice,) = message.choices()
    assert (choice["reasoning"], choice["calls"], choice["text"]) == ("so", [["f", '{"a": 1}']], "")
    assert (choice["finish_reason"], choice["lopa"]) == ("tool_calls", LOPA)


@pytest.mark.parametrize("left_out", [0, 1, 3, 5, 7])
def test_a_message_without_one_of_its_marks_is_an_error(left_out: int) -> None:
    with pytest.raises(BadStreamError):
        message_of(MESSAGE[:left_out] + MESSAGE[left_out + 1 :]).choices()


def test_a_response_accumulates() -> None:
    response = response_of(RESPONSE)
    assert (response.whole, response.drafts, response.id) == (True, 1, "r")
    assert response.choices() == [{"index": 0, "finish_reason": "stop", "lopa": LOPA, "text": "so"}]


def test_a_response_that_differs_from_its_events_is_an_error() -> None:
    other = {**RESPONSE[2], "delta": "other"}
    with pytest.raises(BadStreamError, match="the last event has"):
        response_of([*RESPONSE[:2], other, *RESPONSE[3:]]).choices()
    with pytest.raises(BadStreamError, match="unexpected"):
        response_of([{**each, "sequence_number": 5} for each in RESPONSE])
