"""Whether a client is still there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive


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
