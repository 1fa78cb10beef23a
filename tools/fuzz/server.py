"""A real server in its own process, and the checks that its answers must pass for any input."""

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httptools

import lopa.serve.answering.service
import lopa.serve.http.keys
import lopa.serve.server_process  # noqa: F401 - what the command imports when it runs
from tools.fuzz.decode import forked_command

TIMEOUT = 15.0
"""Seconds to wait for an event before it counts as missing."""
_IDLE_SECONDS = 0.15
"""Seconds without data after which an answer is complete."""
_ALLOWED_LOGS = (
    *(": opening ", "fuzzed at http://", "stopping: running requests finish"),
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


class FuzzedServer:
    """A process of `lopa-export serve` on a free port."""

    def __init__(self, process: int, log: Path) -> None:
        self._process, self._log = process, log
        self.port = 0
        """Port, or 0 until the server listens."""

    def connect(self) -> socket.socket:
        """Return a new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)

    def request(self, path: str, body: Any = None, key: str | None = None) -> Answer:
        """Return the answer to a valid request, and wait until a slot is free.

        Raises as `answers_of` does, TimeoutError if no slot becomes free, and RuntimeError for an invalid answer.
        """
        text = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            *("Host: localhost", "Connection: close", f"Content-Length: {len(text)}"),
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        for _ in _poll("no free slot for a valid request"):
            with self.connect() as client:
                client.sendall("\r\n".join((*lines, "", "")).encode() + text)
                answers = answers_of(client, bodies=True)
            if [each.status for each in answers] == [200]:
                return answers[0]
            if [each.status for each in answers] != [429]:
                break
        raise RuntimeError(f"a valid request for {path} was answered with {answers}")

    def wait_until_idle(self) -> None:
        """Wait until no request runs or waits. Raises TimeoutError if a slot is lost."""
        for _ in _poll("a slot was not released"):
            body = self.request("/metrics").body.decode()
            if not sum(map(float, re.findall(r"^lopa_requests_(?:running|waiting)\S* (\S+)$", body, re.MULTILINE))):
                return

    def wait_until_ready(self) -> None:
        """Wait until the server listens. Raises as `check_alive` does."""
        for _ in _poll("the server does not listen"):
            self.check_alive()
            for line in self._lines():
                found = re.search(r"http://\S+?:(\d+)/v1\b", line)
                if found is not None:
                    self.port = int(found[1])
                    return

    def check_alive(self) -> None:
        """Raise ChildProcessError if the process has ended."""
        status = self._status()
        if status is not None:
            raise ChildProcessError(f"the server ended with status {status}: {''.join(self._lines())[-300:]}")

    def _status(self) -> int | None:
        """Return the status of the ended process, or None while it runs."""
        process, status = os.waitpid(self._process, os.WNOHANG)
        if not process:
            return None
        self._process = 0
        return status

    def stop(self) -> None:
        """Stop the server. Raises an error unless it exits with 0 and has logged only allowed lines."""
        self.check_alive()
        os.kill(self._process, signal.SIGTERM)
        for _ in _poll("the server does not end"):
            status = self._status()
            if status is not None:
                break
        unexpected = [line for line in self._lines() if line.strip() and not _is_allowed(line)]
        if any("MemoryError" in line for line in unexpected):
            raise MemoryError("".join(unexpected)[-300:])
        if unexpected or status:
            raise RuntimeError(f"the server ended with status {status} and logged {''.join(unexpected)[-300:]!r}")

    def kill(self) -> None:
        """Kill the process if it is still running."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def _lines(self) -> list[str]:
        return self._log.read_text("utf-8", "replace").splitlines(keepends=True)


@contextmanager
def serving(bundle: Path, log: Path, *options: object) -> Iterator[FuzzedServer]:
    """Return a context with a server of `bundle` that logs to `log`. The block must stop it."""
    command = ("serve", bundle, "--port", 0, "--model", "fuzzed", "--threads", 1, *options)
    server = FuzzedServer(forked_command(command, log), log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()


def answers_of(client: socket.socket, *, bodies: bool) -> list[Answer]:
    """Return the answers on a connection until it ends, or until no data follows a complete answer.

    Without `bodies`, the answers may be those to HEAD and only their heads are read. Raises RuntimeError for an invalid
    answer, and TimeoutError if there is neither an answer nor an end.
    """
    reader, received = _Reader(), b""
    client.settimeout(_IDLE_SECONDS)
    for _ in _poll("no answer and no end of the connection"):
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


def _is_allowed(line: str) -> bool:
    """Return True if the server may log this line. A line of JSON must be an object."""
    text = line
    if line.startswith("{"):
        record = json.loads(line)
        if record["logger"].endswith(".access"):
            return bool(record["level"] == "INFO" and record["status"] < 500)
        text = record["message"]
    return any(each in text for each in _ALLOWED_LOGS)


def _poll(failure: str) -> Iterator[None]:
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    raise TimeoutError(failure)
