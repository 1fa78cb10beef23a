"""Detection of client disconnects, from ASGI messages alone."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Receive

HALF_CLOSED = "half_closed"
"""Scope extension with an asyncio.Event that is set when the client closes its sending half.

The client may also have disconnected completely. Only sending more bytes shows whether it has.
"""


@contextmanager
def watch_disconnect(receive: Receive) -> "Iterator[asyncio.Task[None]]":
    """Yield a task that ends when the client disconnects. The request body must have been read before."""
    watch = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        yield watch
    finally:
        watch.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
