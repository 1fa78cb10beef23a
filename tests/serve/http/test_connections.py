"""Connections of a real server: answers that come before a body is read, and clients that read nothing."""

import http.client
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpx2 as httpx
import openai
import pytest
from tests.serve.servers import Server, serving
from tests.serve.test_streams import LONG

MEGABYTE = 2**20
GOOD = json.dumps({"model": "tiny", "prompt": "2 + 2", "max_tokens": 4}).encode()


@pytest.fixture(scope="module")
def keyed(chat_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("a-key\n")
    with serving(chat_bundle, "--api-keys", keys, "--stall", 1) as started:
        yield started
        assert started.stop()[0] == 0


def head(length: int, *lines: str, path: str = "/v1/completions") -> bytes:
    named = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *lines)
    return "\r\n".join((*named, "", "")).encode()


def until_end(client: socket.socket) -> bytes:
    received = b""
    while part := client.recv(65536):
        received += part
    return received


def next_answer(received: BinaryIO) -> tuple[int, Any]:
    """Status and body of the next of several answers."""
    status = int(received.readline().split()[1])
    length = int(http.client.parse_headers(received)["content-length"])
    return status, json.loads(received.read(length))


def connected(server: Server, seconds: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=seconds)


@pytest.mark.parametrize("megabytes", [8, 100])
def test_a_client_that_sends_first_and_reads_then_hears_that_it_is_too_large(server: Server, megabytes: int) -> None:
    before = most_memory(server)
    with connected(server) as client:
        client.sendall(head(megabytes * MEGABYTE))
        for _ in range(megabytes):
            client.sendall(bytes(MEGABYTE))
        received = until_end(client)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in received
    assert most_memory(server) - before < 4 * MEGABYTE, "it is dropped as it comes"


def most_memory(server: Server) -> int:
    """Bytes that its process has ever had at once."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def test_the_official_client_hears_it_too(server: Server) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        server.client.completions.create(model="tiny", prompt="x" * 30 * MEGABYTE)
    assert (refused.value.status_code, refused.value.code) == (413, "body_too_large")


def is_hung_up_on(client: socket.socket, piece: bytes, times: int, pause: float) -> bool:
    """Whether somebody who sends `piece` again and again is stopped before the last time."""
    try:
        for _ in range(times):
            client.sendall(piece)
            time.sleep(pause)
    except (ConnectionResetError, BrokenPipeError):
        return True
    return False


@pytest.mark.parametrize(
    ("piece", "times", "pause"), [(bytes(MEGABYTE), 2000, 0.0), (b"x", 100, 0.1)], ids=["fast", "slow"]
)
def test_what_never_ends_is_not_read_for_ever(server: Server, piece: bytes, times: int, pause: float) -> None:
    """Neither at full speed nor byte by byte."""
    with connected(server) as client:
        client.sendall(head(10**12))
        assert is_hung_up_on(client, piece, times, pause)


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/completions", 401), ("/v1/nothing", 404), ("/v1/models", 405)], ids=str
)
def test_what_is_refused_unread_leaves_the_connection_in_order(keyed: Server, path: str, status: int) -> None:
    """The rest of the body is nobody's request, and what follows it is."""
    body = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50_000  # 2 MB that look like requests
    with connected(keyed) as client:
        client.sendall(head(len(body), path=path) + body + b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with client.makefile("rb") as received:
            told = [next_answer(received) for _ in range(2)]
        assert [each for each, _ in told] == [status, 200]
        assert told[1][1] == {"status": "ready"}
        client.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert until_end(client).startswith(b"HTTP/1.1 200 ")


def test_the_rest_of_what_was_refused_has_to_come_in_time(keyed: Server) -> None:
    with connected(keyed) as client:
        client.sendall(head(500))
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")
        assert is_hung_up_on(client, b"x", 60, 0.1), "6 seconds, where the server waits for one"


def test_what_is_no_request_is_never_answered_in_the_midst_of_an_answer(keyed: Server) -> None:
    body = json.dumps({"model": "tiny", "prompt": "2 + 2", "max_tokens": 500, "stream": True, "lopa": LONG}).encode()
    asked = head(len(body), "Authorization: Bearer a-key") + body
    with connected(keyed) as client:
        client.sendall(asked)
        received = client.recv(65536)
        client.sendall(b"no request\r\n\r\n")
        received += until_end(client)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1 ") == 1
    for unread in (head(500).replace(b"Content-Length: 500", b"Transfer-Encoding: chunked"), asked[:1]):
        with connected(keyed) as client:
            client.sendall(unread + b"no chunk, no request\r\n\r\n")
            received = until_end(client)
        assert received.endswith(b"\r\n\r\nInvalid HTTP request received.")
        assert received.count(b"HTTP/1.1 ") == 1


def test_a_client_that_waits_to_be_asked_for_its_body_is_told_in_time(keyed: Server) -> None:
    """After that nobody knows whether its body comes, so that nothing more is read from it."""
    with connected(keyed) as client:
        client.sendall(head(len(GOOD), "Expect: 100-continue"))
        received = until_end(client)
        assert received.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in received
    with connected(keyed) as client:
        client.sendall(head(len(GOOD), "Expect: 100-continue", "Authorization: Bearer a-key"))
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(GOOD)
        assert until_end(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_reads_nothing_loses_its_connection(server: Server) -> None:
    """More is asked for than any system buffers, and none of it is taken for longer than --stall."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        for there in (True, False):
            server.until(lambda there=there: bool(own_connections(server, client.getsockname()[1])) == there)


def own_connections(server: Server, port: int) -> list[str]:
    """Those that the server's process holds with a client on `port`."""
    inodes = set()
    for path in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            inodes.add(str(path.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[9] for line in lines if line[2].endswith(f":{port:04X}") and f"socket:[{line[9]}]" in inodes]


def test_answers_of_a_client_library_are_not_lost_either(keyed: Server) -> None:
    with httpx.Client(base_url=keyed.url, timeout=60, trust_env=False) as client:
        for _ in range(2):
            assert client.post("/v1/completions", content=b"x" * 8 * MEGABYTE).status_code == 401
