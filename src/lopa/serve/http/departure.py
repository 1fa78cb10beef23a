"""Detect that a client has left. Knows no connection: ASGI's messages tell it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive

HALF_CLOSED = "half_closed"
"""Extension of a request's scope: an asyncio.Event that is set when the client has closed its sending half. It may have
left altogether, and the next bytes that are sent to it tell."""


@contextmanager
def departure(receive: Receive) -> "Iterator[asyncio.Task[None]]":
    """A task that is done when the client has gone; only for a request whose body has been read."""
    watch = asyncio.create_task(_departed(receive))
    try:
        yield watch
    finally:
        watch.cancel()


async def _departed(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
