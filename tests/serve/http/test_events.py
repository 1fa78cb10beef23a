"""A client that takes nothing is given up, without a socket: how much a system buffers is its own."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from lopa.serve.http.events import EventResponse


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b"data: {}\n\n"
        await asyncio.sleep(0)


def types_sent(receive: Any, takes: float) -> list[str]:
    """What is sent to a client that takes `takes` messages and then no more; its end is told once."""
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


def test_a_client_that_takes_nothing_more_is_given_up() -> None:
    async def receive() -> Any:
        await asyncio.sleep(60)

    assert len(types_sent(receive, 20)) == 20


def test_a_client_that_goes_ends_it() -> None:
    async def receive() -> Any:
        await asyncio.sleep(0.02)
        return {"type": "http.disconnect"}

    taken = types_sent(receive, float("inf"))
    assert taken[0] == "http.response.start"
    assert len(taken) > 1
