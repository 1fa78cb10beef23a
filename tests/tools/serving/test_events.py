"""Parsing of streams by the soak test: any split, and every kind of error."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tools.serving.events import BadStreamError, StreamedAnswers, events_of_parts

STREAM = b': keep-alive\n\ndata: {"a": 1}\n\ndata: {"b": 2}\n\ndata: [DONE]\n\n'


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
