"""Around an app: the name of each request, which its client may choose, and a line of the access log for each."""

import logging
import re
import secrets
import time
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.serve.logs import ACCESS, REQUEST_ID

HEADER = "x-request-id"
GONE = 499
"""Status of an answer that nobody is there to read; no client sees it."""
_HEADER = HEADER.encode()
_LOG = logging.getLogger(ACCESS)
_NAME = re.compile(rb"[!-~]{1,128}")
_MAX_PATH = 300
"""Characters of a path in the log."""
_number: ContextVar[str | None] = ContextVar("_number", default=None)
_is_client_s: ContextVar[bool] = ContextVar("_is_client_s", default=False)


def number_of_request() -> str:
    """Hexadecimal digits that no other request has, which all our names for the running request end with."""
    return _number.get() or secrets.token_hex(16)


def named_request(own: str) -> str:
    """Return what answers and the log call the running request: its client's name for it if it has one, else `own`."""
    given = REQUEST_ID.get()
    if given is not None and _is_client_s.get():
        return given
    REQUEST_ID.set(own)
    return own


class RequestLog:
    """An ASGI app around `app`. It knows each request by its header X-Request-ID (1 to 128 visible ASCII characters) or
    by a name of its own, sends the name back in that header, and logs each request when it ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection and log its request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == _HEADER]
        is_client_s = len(given) == 1 and _NAME.fullmatch(given[0]) is not None
        number = secrets.token_hex(16)
        _number.set(number)
        _is_client_s.set(is_client_s)
        REQUEST_ID.set(given[0].decode() if is_client_s else f"req_{number}")
        answer = _Answer(send)
        begin = time.perf_counter()
        try:
            await self._app(scope, receive, answer.send)
        finally:
            _write(scope, answer, time.perf_counter() - begin)


class _Answer:
    """Sends messages on, with the request's name in the head, and counts them."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = GONE
        self.sent = 0
        """Bytes of the body."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [each for each in message.get("headers", ()) if each[0].lower() != _HEADER]
            message["headers"] = [*kept, (_HEADER, (REQUEST_ID.get() or "").encode())]
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)


def _write(scope: Scope, answer: _Answer, seconds: float) -> None:
    if not _LOG.isEnabledFor(logging.INFO):
        return
    host, port = scope.get("client") or ("-", 0)
    # As it was sent, percent signs and all, so that it has no line of its own; without the query, which may be secret.
    path = (scope.get("raw_path") or scope["path"].encode("ascii", "backslashreplace")).decode("ascii")[:_MAX_PATH]
    fields = {
        "client": f"{host}:{port}",
        "method": scope["method"],
        "path": path,
        "status": answer.status,
        "bytes": answer.sent,
        "seconds": round(seconds, 6),
    }
    _LOG.info(
        '%s:%d "%s %s HTTP/%s" %d, %d bytes in %.3f s, %s',
        host,
        port,
        scope["method"],
        path,
        scope["http_version"],
        answer.status,
        answer.sent,
        seconds,
        REQUEST_ID.get(),
        extra={"fields": fields},
    )
