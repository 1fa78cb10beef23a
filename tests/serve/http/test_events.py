"""Stalled clients are dropped. The test uses no socket, since systems buffer different amounts."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from lopa.serve.http.events import EventResponse


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"data: {}\n\n"
        await asyncio.sleep(0)


def types_sent(receive: Any, takes: float) -> list[str]:
    """Return the message types sent to a client that accepts `takes` messages. Check that the end is reported once."""
    taken: list[str] = []
    ended: list[bool] = []

    async def send(message: Any) -> None:
        if len(taken) == takes:
            await asyncio.sleep(60)
        taken.append(message["type"])

    async def respond() -> None:
        response = EventResponse(endless(), on_end=lambda: ended.append(True), stall_seconds=0.05, headers={})
        await asyncio.wait_for(response({}, receive, send), 10)

    asyncio.run(respond())
    assert len(ended) == 1
    return taken


def test_stalled_client_is_dropped() -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    assert len(types_sent(receive, 20)) == 20


def test_client_disconnect_ends_the_stream() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.02)
        return {"type": "http.disconnect"}

    taken = types_sent(receive, float("inf"))
    assert taken[0] == "http.response.start"
    assert len(taken) > 1
