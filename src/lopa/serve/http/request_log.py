"""ASGI wrapper that gives each request an ID, which its client may choose, and writes an access log line."""

import logging
import re
import secrets
import time
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lopa.runtime.checked_values import VALUES_IN_JSON
from lopa.serve.logs import ACCESS, REQUEST_ID

HEADER = "x-request-id"
CLIENT_CLOSED = 499
"""Status of a response whose client has disconnected (nginx's 499). No client sees it."""
_HEADER = HEADER.encode()
_LOG = logging.getLogger(ACCESS)
_NAME = re.compile(rb"[!-~]{1,128}")
_MAX_PATH = 300
"""Maximum characters of a path in the log."""
_number: ContextVar[str | None] = ContextVar("_number", default=None)
_has_client_id: ContextVar[bool] = ContextVar("_has_client_id", default=False)
_own: ContextVar[str | None] = ContextVar("_own", default=None)


def request_number() -> str:
    """Return the unique hexadecimal number with which all generated IDs of the running request end."""
    return _number.get() or secrets.token_hex(16)


def set_request_id(own: str) -> str:
    """Set and return the ID of the running request in responses and the log. It is the client's ID, otherwise `own`."""
    _own.set(own)
    given = REQUEST_ID.get()
    if given is not None and _has_client_id.get():
        return given
    REQUEST_ID.set(own)
    return own


def own_request_id() -> str | None:
    """Return the `own` of set_request_id: the ID of the reply in its body, or of an error. None if neither was set."""
    return _own.get()


class RequestLog:
    """ASGI wrapper around `app` that names and logs requests, in whose errors values are JSON.

    The ID is the header X-Request-ID (1 to 128 visible ASCII characters) or a generated one. Responses repeat it in
    that header, and a line is logged when a request ends.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI connection and log its request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == _HEADER]
        has_client_id = len(given) == 1 and _NAME.fullmatch(given[0]) is not None
        number = secrets.token_hex(16)
        _number.set(number)
        _has_client_id.set(has_client_id)
        _own.set(None)
        VALUES_IN_JSON.set(True)
        REQUEST_ID.set(given[0].decode() if has_client_id else f"req_{number}")
        response = _CountedResponse(send)
        begin = time.perf_counter()
        try:
            await self._app(scope, receive, response.send)
        finally:
            _write_log_line(scope, response, time.perf_counter() - begin)


class _CountedResponse:
    """Sender that adds the request ID to the response headers and counts the bytes sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = CLIENT_CLOSED
        self.sent = 0
        """Body bytes sent."""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            kept = [each for each in message.get("headers", ()) if each[0].lower() != _HEADER]
            message["headers"] = [*kept, (_HEADER, (REQUEST_ID.get() or "").encode())]
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)


def _write_log_line(scope: Scope, response: _CountedResponse, seconds: float) -> None:
    if not _LOG.isEnabledFor(logging.INFO):
        return
    host, port = scope.get("client") or ("-", 0)
    # The raw path keeps percent encoding, so it cannot inject log lines. The query is left out: it may contain secrets.
    path = (scope.get("raw_path") or scope["path"].encode("ascii", "backslashreplace")).decode("ascii")[:_MAX_PATH]
    fields = {
        "client": f"{host}:{port}",
        "method": scope["method"],
        "path": path,
        "status": response.status,
        "bytes": response.sent,
        "seconds": round(seconds, 6),
    }
    _LOG.info(
        '%s:%d "%s %s HTTP/%s" %d, %d bytes in %.3f s, %s',
        host,
        port,
        scope["method"],
        path,
        scope["http_version"],
        response.status,
        response.sent,
        seconds,
        REQUEST_ID.get(),
        extra={"fields": fields},
    )
