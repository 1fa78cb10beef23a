"""A real server in a process of its own, and what its answers have to be whatever it is sent. Knows no mutation."""

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
import lopa.serve.process  # noqa: F401 - what the command imports when it runs
from tools.fuzz.decode import forked_command

PATIENCE = 15.0
"""Seconds after which something that has to happen never will."""
_QUIET = 0.15
"""Seconds in which nothing more comes behind an answer."""
_SAID = ("fuzzed at http://", "stopping: running requests finish", "Invalid HTTP request received.")
"""What the server may say on standard error."""
_HEADERS = frozenset(
    (
        *("date", "content-type", "content-length", "connection", "transfer-encoding", "x-request-id", "retry-after"),
        *("www-authenticate", "allow", "cache-control", "x-accel-buffering", "vary", "content-security-policy"),
        *("x-content-type-options", "referrer-policy", "access-control-allow-origin", "access-control-allow-methods"),
        *("access-control-allow-headers", "access-control-max-age", "access-control-allow-credentials"),
    )
)
"""What an answer may have: any other name was brought in by the request."""


_NAME = re.compile(r"[!-~]{1,128}")
"""Request ids, from a client or from the server."""


@dataclass
class Answer:
    """An answer over HTTP."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


class _Reader:
    """Answers out of bytes; HTTP that is none raises httptools.HttpParserError."""

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
    """`lopa-export serve` on a free port."""

    def __init__(self, process: int, log: Path) -> None:
        self._process, self._log = process, log
        self.port = 0
        """0 until it listens."""

    def connect(self) -> socket.socket:
        """A connection of its own."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)

    def asked(self, path: str, body: Any = None, key: str | None = None) -> Answer:
        """The answer to a good request, which waits for a place that one who went has not given back yet.

        Raises as `answers_of` does, TimeoutError where no place comes, RuntimeError where the answer is no good.
        """
        text = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{'GET' if body is None else 'POST'} {path} HTTP/1.1",
            *("Host: localhost", "Connection: close", f"Content-Length: {len(text)}"),
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        for _ in _tries("no place for a good request"):
            with self.connect() as client:
                client.sendall("\r\n".join((*lines, "", "")).encode() + text)
                answers = answers_of(client, bodies=True)
            if [each.status for each in answers] == [200]:
                return answers[0]
            if [each.status for each in answers] != [429]:
                break
        raise RuntimeError(f"a good request for {path} was answered with {answers}")

    def until_idle(self) -> None:
        """Raises TimeoutError where a slot is lost."""
        for _ in _tries("a slot is not free again"):
            told = self.asked("/metrics").body.decode()
            if not sum(map(float, re.findall(r"^lopa_requests_(?:running|waiting)\S* (\S+)$", told, re.MULTILINE))):
                return

    def wait_until_ready(self) -> None:
        """Raises as `check_alive` does."""
        for _ in _tries("the server does not listen"):
            self.check_alive()
            for line in self._lines():
                found = re.search(r"http://\S+?:(\d+)/v1\b", line)
                if found is not None:
                    self.port = int(found[1])
                    return

    def check_alive(self) -> None:
        """Raise ChildProcessError for a process that has ended."""
        status = self._status()
        if status is not None:
            raise ChildProcessError(f"the server ended with status {status}: {''.join(self._lines())[-300:]}")

    def _status(self) -> int | None:
        """Return how the process ended, or None while it runs."""
        process, status = os.waitpid(self._process, os.WNOHANG)
        if not process:
            return None
        self._process = 0
        return status

    def stop(self) -> None:
        """Raise unless it ends with exit code 0 and has said nothing that it should not."""
        self.check_alive()
        os.kill(self._process, signal.SIGTERM)
        for _ in _tries("the server does not end"):
            status = self._status()
            if status is not None:
                break
        said = [line for line in self._lines() if line.strip() and not _is_known(line)]
        if any("MemoryError" in line for line in said):
            raise MemoryError("".join(said)[-300:])
        if said or status:
            raise RuntimeError(f"the server ended with status {status} and said {''.join(said)[-300:]!r}")

    def kill(self) -> None:
        """If it is there still."""
        if self._process:
            os.kill(self._process, signal.SIGKILL)
            os.waitpid(self._process, 0)

    def _lines(self) -> list[str]:
        return self._log.read_text("utf-8", "replace").splitlines(keepends=True)


@contextmanager
def serving(bundle: Path, log: Path, *options: object) -> Iterator[FuzzedServer]:
    """A server of `bundle` whose standard error goes to `log`. Its end is the block's to bring about."""
    command = ("serve", bundle, "--port", 0, "--model", "fuzzed", "--threads", 1, *options)
    server = FuzzedServer(forked_command(command, log), log)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()


def answers_of(client: socket.socket, *, bodies: bool) -> list[Answer]:
    """What comes on a connection until it ends, or until nothing more follows a whole answer.

    Without `bodies` answers may be those to HEAD, of which only the heads are read. Raises RuntimeError for what an
    answer may not be and TimeoutError where neither an answer nor the end comes.
    """
    reader, received = _Reader(), b""
    client.settimeout(_QUIET)
    for _ in _tries("no answer, and no end of the connection"):
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
            raise RuntimeError(f"no HTTP ({error}): {received[-200:]!r}") from error
    for answer in reader.answers:
        _check(answer)
    return reader.answers


def _check(answer: Answer) -> None:
    """Raise RuntimeError for an answer that no request may have."""
    wrong = sorted(set(answer.headers) - _HEADERS)
    if wrong:
        raise RuntimeError(f"headers that the server does not have: {wrong}")
    if not _NAME.fullmatch(answer.headers.get("x-request-id", "-")):
        raise RuntimeError(f"a name that no request has: {answer.headers}")
    if answer.status >= 500:
        raise RuntimeError(f"{answer.status}: {answer.body[:200]!r}")
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


def _check_error(told: Any) -> None:
    error = told["error"]
    texts = all(isinstance(error[name], str) and error[name] for name in ("message", "type"))
    more = all(error[name] is None or isinstance(error[name], str) for name in ("param", "code"))
    if len(error) != 4 or not (texts and more):
        raise RuntimeError(f"an error that says {told}")


def _is_known(line: str) -> bool:
    """Return whether the server may log this line. A line of JSON has to be an object."""
    text = line
    if line.startswith("{"):
        record = json.loads(line)
        if record["logger"].endswith(".access"):
            return bool(record["level"] == "INFO" and record["status"] < 500)
        text = record["message"]
    return any(each in text for each in _SAID)


def _tries(otherwise: str) -> Iterator[None]:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    raise TimeoutError(otherwise)
