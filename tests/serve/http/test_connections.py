"""Connections of a real server: answers that come before a body is read, and clients that read nothing."""

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import httpx2 as httpx
import openai
import pytest
from tests.serve.servers import INVALID, STOPPING, Server, serving
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
    assert b"data: [DONE]" in received
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


ODD = {
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n": 400,
    b"CONNECT /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc": 400,
    b"CONNECT HTTP/1.1\r\n\r\n": 400,
    b"OPTIONS http: HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"DESCRIBE rtsp://localhost RTSP/1.0\r\nHost: localhost\r\n\r\n": 400,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": 400,
    b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"get /health HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"GET\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n": 400,
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 404,
    b"TRACE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 405,
    b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 200,
    b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 200,
    b"GET http://localhost?a=b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 200,
    b"GET //localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 404,
}
"""What a connection begins with, and the status of its answer."""


def test_every_method_and_target_gets_an_answer_one_line_and_is_counted(chat_bundle: Path) -> None:
    with serving(chat_bundle) as server:
        for sent, status in ODD.items():
            with connected(server) as client:
                client.sendall(sent)
                received = until_end(client)
            assert received.startswith(b"HTTP/1.1 %d " % status), (sent, received)
            assert received.count(b"HTTP/1.1 ") == 1
        invalid = [sent for sent, status in ODD.items() if status == 400]
        assert server.metric('lopa_rejected_total{model="tiny",reason="bad_request"') == len(invalid)
        code, said = server.stop()
    *lines, last = said.splitlines()
    assert (code, last) == (0, STOPPING)
    assert len(lines) == len(invalid)
    assert all(INVALID in line for line in lines), said
    assert "CONNECT, and this server is no proxy" in lines[0]


def asking(tokens: int, *, stream: bool = False) -> bytes:
    """A whole request for an answer of `tokens` tokens, one forward each."""
    body = {"model": "tiny", "prompt": "2 + 2", "max_tokens": tokens, "stream": stream, "lopa": LONG}
    text = json.dumps(body).encode()
    return head(len(text)) + text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "behind",
    [
        b"GARBAGE\r\n\r\n",
        b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nno colon\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n",
        b"\x00" * 200_000,
    ],
    ids=["garbage", "connect", "header", "chunk", "long"],
)
def test_a_whole_request_is_answered_whatever_comes_behind_it(server: Server, behind: bytes, stream: bool) -> None:
    """In one piece with it, or while it is answered. What comes behind is never answered in its place."""
    for pause in (0.0, 0.05):
        with connected(server) as client:
            client.sendall(asking(250, stream=stream) + (b"" if pause else behind))
            if pause:
                time.sleep(pause)
                client.sendall(behind)
            received = until_end(client)
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.count(b"HTTP/1.1 ") == 1
        assert (b"data: [DONE]" if stream else b'"completion_tokens":250') in received


def test_of_several_requests_each_is_answered_before_the_garbage(server: Server) -> None:
    with connected(server) as client:
        client.sendall(asking(20) + b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n" + asking(3) + b"\x00\x01\r\n\r\n")
        with client.makefile("rb") as received:
            told = [next_answer(received) for _ in range(3)]
            assert received.read() == b""
    assert [status for status, _ in told] == [200, 200, 200]
    assert [each["usage"]["completion_tokens"] for _, each in (told[0], told[2])] == [20, 3]


def test_half_a_request_behind_a_whole_one_does_not_cut_its_answer(keyed: Server) -> None:
    """The half is given up after --stall seconds, here one, while the whole one still runs."""
    asked = asking(1000).replace(b"Host: localhost", b"Host: localhost\r\nAuthorization: Bearer a-key")
    with connected(keyed) as client:
        client.sendall(asked + b"POST /v1/comp")
        received = until_end(client)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"completion_tokens":1000' in received


def test_an_upgrade_is_ignored_and_the_next_requests_are_answered(server: Server) -> None:
    upgrading = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAA\r\n\r\n"
    with connected(server) as client, client.makefile("rb") as received:
        for together in (1, 3):
            client.sendall((b"GET /ready HTTP/1.1\r\nHost: localhost\r\n" + upgrading) * together)
            assert [next_answer(received) for _ in range(together)] == [(200, {"status": "ready"})] * together


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tokens", [4, 600], ids=["short", "long"])
def test_a_client_that_closes_its_sending_half_is_answered(server: Server, stream: bool, tokens: int) -> None:
    """A long one is asked whether it is still there, by interim answers or by comments of the stream."""
    server.until_idle()
    cancelled = server.metric("lopa_cancelled_total")
    with connected(server) as client:
        client.sendall(asking(tokens, stream=stream))
        client.shutdown(socket.SHUT_WR)
        received = until_end(client)
    while received.startswith(interim := b"HTTP/1.1 100 Continue\r\n\r\n"):
        assert tokens == 600
        assert not stream
        received = received.removeprefix(interim)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (b"data: [DONE]" if stream else b'"completion_tokens":%d' % tokens) in received
    assert server.metric("lopa_cancelled_total") == cancelled


def test_pipelined_requests_are_all_answered_to_a_client_that_closed_its_sending_half(server: Server) -> None:
    ready = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(server) as client:
        client.sendall(asking(10) + ready + asking(5) + ready + b"POST /v1/comp")
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as received:
            assert [next_answer(received)[0] for _ in range(4)] == [200] * 4
            assert received.read() == b""


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
@pytest.mark.parametrize("way", ["close", "close after its half", "reset"])
def test_a_client_that_leaves_altogether_stops_the_work(server: Server, stream: bool, version: bytes, way: str) -> None:
    server.until_idle()
    cancelled, steps = server.metric("lopa_cancelled_total"), server.metric("lopa_steps_total")
    with connected(server) as client:
        client.sendall(asking(1000, stream=stream).replace(b"HTTP/1.1", b"HTTP/" + version))
        server.until(lambda: server.metric("lopa_requests_running") == 1)
        if way == "close after its half":
            client.shutdown(socket.SHUT_WR)
            time.sleep(0.1)
        elif way == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.until_idle()
    assert server.metric("lopa_cancelled_total") - cancelled == 1
    assert server.metric("lopa_steps_total") - steps < 990


def test_a_client_that_leaves_while_a_second_request_waits_stops_the_first(server: Server) -> None:
    server.until_idle()
    cancelled = server.metric("lopa_cancelled_total")
    with connected(server) as client:
        client.sendall(asking(1000) + asking(5))
        server.until(lambda: server.metric("lopa_requests_running") == 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.until_idle()
    assert server.metric("lopa_cancelled_total") - cancelled == 1
