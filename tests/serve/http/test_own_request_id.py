"""The ID of a reply beside the ID that its client chose."""

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from lopa.serve.http.request_log import RequestLog, own_request_id, set_request_id


def test_id_of_the_reply_is_known_for_its_own_request_only() -> None:
    """Serve three requests in one context, as uvicorn does with pipelined ones."""
    replies = iter(("cmpl-1", "cmpl-2", None))
    shown: list[tuple[str | None, str | None]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reply = next(replies)
        shown.append((None if reply is None else set_request_id(reply), own_request_id()))

    async def ignore(*_: Any) -> Any:
        return {}

    async def serve() -> None:
        for headers in ([], [(b"x-request-id", b"mine")], []):
            scope = {"type": "http", "method": "GET", "path": "/", "http_version": "1.1", "headers": headers}
            await RequestLog(app)(scope, ignore, ignore)

    asyncio.run(serve())
    assert shown == [("cmpl-1", "cmpl-1"), ("mine", "cmpl-2"), (None, None)]
