"""Cases from data sent to a server: requests that are mutated, truncated, chunked, pipelined or abandoned."""

import json
import random
import socket
import struct
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from lopa.runtime.errors import BadInputError
from tools.fuzz.answers import TIMEOUT, Answer, answers_of, check_log
from tools.fuzz.bundles import update_record
from tools.fuzz.case import Case, Material
from tools.fuzz.decode import PROMPT
from tools.fuzz.mutations import PIECES, TEXTS, changed_bytes, changed_json, short, text_of_json
from tools.serving.server import MODEL, ServerProcess, run_server

_EXCHANGES = 5
_MAX_BYTES = 300_000
"""Maximum bytes of a body. The server reads 20,000. Some mutated bodies have millions, which take long to split."""
_KEY = "a-key"
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}Answer:"
_LIMITS = (
    *("--max-num-seqs", 2, "--queue", 2, "--max-tokens", 24, "--max-branches", 4, "--max-seconds", 4),
    *("--max-choices", 4, "--max-body", 20_000, "--stall", 0.4, "--keep-alive", 0.05, "--drain", 8),
)
_GOOD = {"model": MODEL, "prompt": PROMPT, "max_tokens": 8}
_TALK = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": [{"type": "text", "text": "4"}]}]
_BODIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("/v1/completions", _GOOD),
    ("/v1/completions", {**_GOOD, "prompt": [PROMPT, "x"], "n": 2, "temperature": 0.5, "seed": 5, "logprobs": 0}),
    ("/v1/completions", {**_GOOD, "prompt": [5, 6, 7], "stop": ["a", "b"], "top_p": 0.9, "echo": False}),
    ("/v1/completions", {**_GOOD, "stream": True, "stream_options": {"include_usage": True, "include_drafts": True}}),
    ("/v1/chat/completions", {"model": MODEL, "messages": _TALK, "max_completion_tokens": 8, "logprobs": True}),
    (
        "/v1/chat/completions",
        {
            **{"model": MODEL, "messages": _TALK, "max_tokens": 8, "stream": True, "user": "a", "tools": []},
            "lopa": {"branches": 3, "block_size": 8, "attention": "block_causal", "deadline": 2, "time_limit": 2.5},
        },
    ),
)
_PATHS = ("/", "/health", "/ready", "/metrics", "/v1/models", f"/v1/models/{MODEL}", "/v1/models/x%0d%0aA:%20b", "/%ff")
_TARGETS = (
    *("localhost:22", "127.0.0.1:22", "*", "http://localhost", "http://localhost/health", "http://localhost?a=b"),
    *("https://elsewhere/v1/models", "http:", "rtsp://localhost", "//localhost/health", "?a=b", "#a", "health", ""),
    *("/health HTTP/1.1 extra", "/\t", "/health\x00", "/\udcff", "/./../health", "/%2e%2e/health", "[::1]:80"),
    "ftp://x/y",
)
"""Request targets that are invalid, or no path of this server."""
_METHODS = ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "CONNECT", "TRACE", "X", "get", "")
_ODD_METHODS = (
    *("CONNECT", "CONNECT", "OPTIONS", "PRI", "SOURCE", "DESCRIBE", "M-SEARCH", "PROPFIND", "GET", "POST", "TRACE"),
)
_PROTOCOLS = (*("HTTP/1.1",) * 8, "HTTP/1.0", "HTTP/2.0", "RTSP/1.0", "ICE/1.0", "HTTP/1.1 ", "http/1.1", "")
_SUFFIXES = (
    *(b"GARBAGE\r\n\r\n", b"\x00", b"\x00" * 70_000, b"\r\n\r\n", b"\n", b"POST /v1/comp", b"\x16\x03\x01\x02\x00"),
    *(b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health HTTP/1.1\r\nno colon\r\n\r\n"),
    *(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"),
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
)
"""Bytes that follow a complete request on its connection."""
_LINES = (
    *(b"Origin: null", b"Origin: http://localhost", b"Origin: \xff\xfe", b"Host: elsewhere", b"Host: [::1]:x"),
    *(b"Host:", b"Host: localhost:%s", b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 0x10"),
    *(b"Content-Length:", b"Content-Length: 99999999999999999999", b"Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: identity", b"Transfer-Encoding : chunked"),
    *(b"Expect: 100-continue", b"Expect: more", b"Connection: Upgrade\r\nUpgrade: websocket", b"Connection: close"),
    *(b"Connection: keep-alive, close", b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings"),
    *(b"Authorization: Bearer \xff\x80", b"Authorization:", b"Authorization: Basic a-key", b"Content-Type: text/plain"),
    *(b"Content-Encoding: gzip", b"X: \x00", b"\xe9: y", b" folded", b"no colon", b": no name"),
    *(b"X-Many: " + b"y" * 70_000, b"\r\n".join(b"X: y" for _ in range(3000)), b"X-Request-ID: mine"),
    *(b"X-Request-ID: a b", b"X-Request-ID:", b"X-Request-ID: \xff\xfe", b"X-Request-ID: a\tb"),
    *(b"X-Request-ID: " + b"x" * 129, b"X-Request-ID: one\r\nX-Request-ID: two", b'x-request-id: %s%n"\\{}'),
    *(b"Host: a\r\nHost: b", b"Host : localhost", b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: +5"),
    *(b"Connection: Upgrade\r\nUpgrade: h2c", b"Connection: , ,", b"X-A: b\r\n\tfolded", b"X: a\rb", b"X: a\nY: b"),
    *(b"\r", b"Authorization: Bearer", b"Authorization: Bearer a-key\r\nAuthorization: Bearer b"),
    *(b"Authorization: Bearer  \ta-key ", b"Range: bytes=0-1", b"Access-Control-Request-Method: POST"),
    *(b"Accept: */*;q=9e999", b"Cookie: " + b"a=b;" * 500),
)
_FORGET = struct.pack("ii", 1, 0)
_End = Literal["read", "leave", "reset", "half"]
_ENDS: tuple[_End, ...] = (*("read",) * 7, "leave", "reset", "half")


@dataclass(frozen=True)
class _Exchange:
    """Bytes sent on one connection, and its end."""

    sent: bytes
    pieces: tuple[int, ...]
    """Positions at which the bytes are split into separate sends."""
    end: _End
    """read: wait for answers. leave, reset: close immediately. half: close the sending side, then read."""
    is_good: bool = False
    """True if the first request must be answered regardless of the bytes behind it."""


def http_case(rng: random.Random, folder: Path, material: Material) -> Case:
    """Open a few connections to a server at once.

    Afterwards the server must answer as before, have all slots free, and exit properly.
    """
    bundle = Path(copytree(material.bundle, folder / "bundle"))
    settings = bundle / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": _TEMPLATE}))
    update_record(bundle, settings.name)
    (folder / "keys").write_text(_KEY)
    log = folder / "server.txt"
    has_keys, has_cors = rng.random() < 0.2, rng.random() < 0.2
    options = (
        *_LIMITS,
        *(("--api-keys", folder / "keys") if has_keys else ()),
        *(("--cors", rng.choice(["*", "null", "http://localhost"])) if has_cors else ()),
        *(("--access-log", "--log-format", "json") if rng.random() < 0.3 else ()),
    )
    pairs = [_exchange(rng) for _ in range(_EXCHANGES)]
    exchanges = [exchange for exchange, _ in pairs]
    (folder / "sent.txt").write_text("\n".join(map(repr, exchanges)))

    def run() -> None:
        with run_server(bundle, options, log_file=log) as server:
            before = _answer(server)
            answers = _run_exchanges(server, exchanges)
            server.wait_until_idle(TIMEOUT)
            if _answer(server) != before:
                raise RuntimeError("the answer changed")
        check_log(log.read_text("utf-8", "replace"))
        if answers and all(answer.status >= 400 for answer in answers):
            raise BadInputError(repr(answers[0].body[:80]), expected="a valid request", remedy="none")

    return Case("; ".join(words for _, words in pairs), run)


def _answer(server: ServerProcess) -> object:
    """Return the text of a valid request."""
    reply = httpx2.post(f"{server.url}/v1/completions", json=_GOOD, headers={"Authorization": f"Bearer {_KEY}"})
    return reply.raise_for_status().json()["choices"][0]["text"]


def _run_exchanges(server: ServerProcess, exchanges: list[_Exchange]) -> list[Answer]:
    """Send all exchanges before reading any answer."""
    waiting: list[tuple[_Exchange, socket.socket]] = []
    address = urlsplit(server.url)
    try:
        for exchange in exchanges:
            client = socket.create_connection((address.hostname, address.port), timeout=TIMEOUT)
            waiting.append((exchange, client))
            _send(client, exchange)
        found: list[Answer] = []
        for exchange, client in waiting:
            if exchange.end in ("read", "half"):
                answers = answers_of(client, bodies=b"HEAD" not in exchange.sent)
                if exchange.is_good and [answer.status for answer in answers[:1]] not in ([200], [429]):
                    raise RuntimeError(f"a valid request was answered with {answers[:1]}: {exchange}")
                found += answers
        return found
    finally:
        for _, client in waiting:
            client.close()


def _send(client: socket.socket, exchange: _Exchange) -> None:
    places = (0, *exchange.pieces, len(exchange.sent))
    try:
        for begin, end in pairwise(places):
            client.sendall(exchange.sent[begin:end])
            if exchange.pieces:
                time.sleep(0.002)
        if exchange.end == "half":
            client.shutdown(socket.SHUT_WR)
        elif exchange.end == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _FORGET)
        if exchange.end in ("leave", "reset"):
            client.close()
    except OSError:  # the server closed the connection; its answer is still read
        return


def _exchange(rng: random.Random) -> tuple[_Exchange, str]:
    if rng.random() < 0.2:
        return _valid_first(rng)
    parts, words = [], []
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3])):
        sent, label = _odd_request(rng) if rng.random() < 0.15 else _request(rng)
        parts.append(sent)
        words.append(label)
    sent = b"".join(parts)
    action = rng.randrange(12)
    if action == 0:
        sent, label = changed_bytes(rng, sent)
        words.append(label)
    elif action == 1:
        sent = sent[: rng.randrange(len(sent) + 1)]
        words.append(f"cut at {len(sent)}")
    elif action == 2:
        sent = rng.randbytes(rng.choice([1, 100, 5000]))
        words = ["random bytes"]
    pieces = sorted(rng.randrange(len(sent) + 1) for _ in range(rng.choice([0, 0, 0, 1, 3, 20])))
    end = rng.choice(_ENDS)
    return _Exchange(sent, tuple(pieces), end), f"{' + '.join(words)} ({end})"


def _valid_first(rng: random.Random) -> tuple[_Exchange, str]:
    """Return a valid request followed by garbage, another request or the end of the client's stream."""
    path, good = rng.choice(_BODIES)
    body = json.dumps(good).encode()
    lines = (
        f"POST {path} HTTP/1.1".encode(),
        b"Host: localhost",
        b"Authorization: Bearer " + _KEY.encode(),
        b"Content-Length: %d" % len(body),
    )
    sent = b"\r\n".join((*lines, b"", body))
    action, suffix = rng.randrange(4), b""
    if action == 0:
        suffix = rng.choice(_SUFFIXES)
    elif action == 1:
        suffix = rng.randbytes(rng.choice([1, 100, 5000]))
    elif action == 2:
        suffix, _ = _odd_request(rng)
    end: _End = rng.choice(["read", "half", "half"])
    pieces = (len(sent),) if suffix and rng.random() < 0.5 else ()
    return _Exchange(sent + suffix, pieces, end, is_good=True), f"good, then {short(suffix)} ({end})"


def _odd_request(rng: random.Random) -> tuple[bytes, str]:
    """Return a request with an unusual first line that is valid or nearly valid HTTP."""
    first = f"{rng.choice(_ODD_METHODS)} {rng.choice((*_TARGETS, *_PATHS))} {rng.choice(_PROTOCOLS)}"
    lines = [b"Host: localhost", *(rng.choice(_LINES) for _ in range(rng.choice([0, 0, 1])))]
    body = rng.choice([b"", b"", b"\r\n", b"SM\r\n\r\n", b"abc"])
    return b"\r\n".join((first.encode("utf-8", "surrogateescape"), *lines, b"", body)), first


def _request(rng: random.Random) -> tuple[bytes, str]:
    """Return a request with mutations, and their description."""
    method, (path, good) = "POST", rng.choice(_BODIES)
    body, words = json.dumps(good).encode(), "good"
    action = rng.randrange(10)
    if action < 6:
        tree, words = changed_json(rng, good)
        body = text_of_json(rng, tree)
    elif action == 6:
        body, words = changed_bytes(rng, body)
    elif action == 7:
        method, path, body = rng.choice(_METHODS), rng.choice(_PATHS), rng.choice([b"", b"", b"{}", body])
        words = f"{method} {path}"
    body = body[:_MAX_BYTES]
    lines = [b"Host: localhost"]
    if rng.random() < 0.9:
        lines.append(b"Authorization: Bearer " + _KEY.encode())
    for _ in range(rng.choice([0, 0, 0, 1, 2])):
        line = rng.choice(_LINES)
        lines.insert(rng.randrange(len(lines) + 1), line)
        words += f", {short(line)}"
    if rng.random() < 0.1:
        path += rng.choice(["?" + "x" * 100, "#x", "/", "%00", "é", " x", "\\", ";x=1", "?%ff=%"])
        words += f" at {path[-20:]}"
    chunked = rng.random() < 0.2
    if chunked:
        lines.append(b"Transfer-Encoding: chunked")
        body = _chunks(rng, body)
    elif body:
        lines.append(b"Content-Length: %d" % (len(body) + (rng.choice([-1, 1, 5000]) if rng.random() < 0.03 else 0)))
    version = rng.choice([b"1.1"] * 12 + [b"1.0", b"2.0", b"0.9", b"9.9999", b""])
    first = method.encode() + b" " + path.encode("utf-8", "replace") + b" HTTP/" + version
    return b"\r\n".join((first, *lines, b"", body)), f"{'chunked ' if chunked else ''}{words}"


def _chunks(rng: random.Random, body: bytes) -> bytes:
    """Return `body` in chunks, some of them invalid."""
    chunks = b""
    while body:
        size = min(len(body), rng.choice([1, 7, 100, 10_000]))
        label = b"%x" % size
        if rng.random() < 0.04:
            label = rng.choice([b"-1", b"", b"g", b"0", b"f" * 30, b"%x;%s" % (size, b"y" * 20_000), b"0x%x" % size])
        chunks += label + b"\r\n" + body[:size] + b"\r\n"
        body = body[size:]
    trailer = rng.choice([b"", b"", b"", b"X: y\r\n", rng.choice(PIECES), rng.choice(TEXTS).encode("utf-8", "replace")])
    return chunks + b"0\r\n" + trailer + b"\r\n"
