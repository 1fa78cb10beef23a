"""Checks that answers and logs of a server must pass for any input."""

import json
import re
import socket
import time
from dataclasses import dataclass, field
from typing import Any

import httptools

from tools.serving.server import MODEL

TIMEOUT = 15.0
"""Seconds to wait for an answer before it counts as missing."""
_IDLE_SECONDS = 0.15
"""Seconds without data after which an answer is complete."""
_ALLOWED_LOGS = (
    *(": opening ", f"{MODEL} at http://", "stopping: running requests finish"),
    "Invalid HTTP request received.",
)
"""Allowed texts on standard error."""
_HEADERS = frozenset(
    (
        *("date", "content-type", "content-length", "connection", "transfer-encoding", "x-request-id", "retry-after"),
        *("www-authenticate", "allow", "cache-control", "x-accel-buffering", "vary", "content-security-policy"),
        *("x-content-type-options", "referrer-policy", "access-control-allow-origin", "access-control-allow-methods"),
        *("access-control-allow-headers", "access-control-max-age", "access-control-allow-credentials"),
    )
)
"""Allowed headers of an answer. Any other name comes from the request."""


_REQUEST_ID = re.compile(r"[!-~]{1,128}")
"""Valid request ids, from a client or the server."""


@dataclass
class Answer:
    """An HTTP answer."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _Reader:
    """Parser of answers. Raises httptools.HttpParserError for invalid HTTP."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self._now = Answer()
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self._now = Answer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._now.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._now.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._now.body += body

    def on_message_complete(self) -> None:
        if self._now.status >= 200:
            self.answers.append(self._now)


def answers_of(client: socket.socket, *, bodies: bool) -> list[Answer]:
    """Return the answers on a connection until it ends, or until no data follows a complete answer.

    Without `bodies`, the answers may be those to HEAD and only their heads are read. Raises RuntimeError for an invalid
    answer, and TimeoutError if there is neither an answer nor an end.
    """
    reader, received = _Reader(), b""
    client.settimeout(_IDLE_SECONDS)
    end = time.monotonic() + TIMEOUT
    while True:
        if time.monotonic() > end:
            raise TimeoutError("no answer and no end of the connection")
        try:
            part = client.recv(65536)
        except TimeoutError:
            if reader.answers or (received and not bodies):
                break
            continue
        except ConnectionResetError:
            break
        if not part:
            break
        received += part
        try:
            if bodies:
                reader.parser.feed_data(part)
        except httptools.HttpParserError as error:
            raise RuntimeError(f"invalid HTTP ({error}): {received[-200:]!r}") from error
    for answer in reader.answers:
        _check(answer)
    return reader.answers


def _check(answer: Answer) -> None:
    """Raise RuntimeError for an answer that is invalid for any request."""
    wrong = sorted(set(answer.headers) - _HEADERS)
    if wrong:
        raise RuntimeError(f"unexpected headers: {wrong}")
    if not _REQUEST_ID.fullmatch(answer.headers.get("x-request-id", "-")):
        raise RuntimeError(f"invalid request id: {answer.headers}")
    if answer.status >= 500:
        raise RuntimeError(f"unexpected status {answer.status}: {answer.body[:200]!r}")
    kind = answer.headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        _check_stream(answer.body.decode())
    elif answer.status >= 400:
        if (answer.status, answer.body) != (400, b"Invalid HTTP request received."):
            _check_error(json.loads(answer.body))
    elif kind == "application/json":
        json.loads(answer.body)


def _check_stream(text: str) -> None:
    events = [event for event in text.split("\n\n") if event and not event.startswith(":")]
    *parts, last = [event.removeprefix("data: ") for event in events]
    for part in parts:
        json.loads(part)
    if last != "[DONE]":
        _check_error(json.loads(last))


def _check_error(body: Any) -> None:
    error = body["error"]
    texts = all(isinstance(error[name], str) and error[name] for name in ("message", "type"))
    more = all(error[name] is None or isinstance(error[name], str) for name in ("param", "code"))
    if len(error) != 4 or not (texts and more):
        raise RuntimeError(f"invalid error reply: {body}")


def check_log(text: str) -> None:
    """Raise RuntimeError if a server has logged more than the allowed lines."""
    unexpected = [line for line in text.splitlines() if line.strip() and not _is_allowed(line)]
    if unexpected:
        raise RuntimeError(f"the server logged {unexpected}")


def _is_allowed(line: str) -> bool:
    """Return True if the server may log this line. A line of JSON must be an object."""
    text = line
    if line.startswith("{"):
        record = json.loads(line)
        if record["logger"].endswith(".access"):
            return bool(record["level"] == "INFO" and record["status"] < 500)
        text = record["message"]
    return any(each in text for each in _ALLOWED_LOGS)
