"""Connections of a real server: answers before the body was read, and clients that read nothing."""

import http.client
import json
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

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
    """Return status and body of the next answer that is no interim response."""
    status = int(received.readline().split()[1])
    headers = http.client.parse_headers(received)
    if status == 100:
        return next_answer(received)
    length = int(headers["content-length"])
    return status, json.loads(received.read(length))


def open_connection(server: Server, seconds: float = 60.0) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=seconds)


def test_client_that_sends_first_and_reads_later_gets_413(server: Server) -> None:
    before, megabytes = peak_memory(server), 30
    with open_connection(server) as client:
        client.sendall(head(megabytes * MEGABYTE))
        for _ in range(megabytes):
            client.sendall(bytes(MEGABYTE))
        received = until_end(client)
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in received
    assert peak_memory(server) - before < 4 * MEGABYTE, "the body is dropped as it arrives"


def peak_memory(server: Server) -> int:
    """Return the peak memory of the server's process in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def is_cut_off(client: socket.socket, piece: bytes, times: int, pause: float) -> bool:
    """Return True if the server hangs up before a client has sent `piece` the last time."""
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
def test_endless_bodies_are_cut_off(server: Server, piece: bytes, times: int, pause: float) -> None:
    """Check at full speed and byte by byte."""
    with open_connection(server) as client:
        client.sendall(head(10**12))
        assert is_cut_off(client, piece, times, pause)


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/completions", 401), ("/v1/nothing", 404), ("/v1/models", 405)], ids=str
)
def test_rejected_unread_body_keeps_the_connection_usable(keyed: Server, path: str, status: int) -> None:
    """Check that the unread body is dropped and the next request is answered."""
    body = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50_000  # 2 MB that look like requests
    with open_connection(keyed) as client:
        client.sendall(head(len(body), path=path) + body + b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with client.makefile("rb") as received:
            replies = [next_answer(received) for _ in range(2)]
        assert [each for each, _ in replies] == [status, 200]
        assert replies[1][1] == {"status": "ready"}
        client.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert until_end(client).startswith(b"HTTP/1.1 200 ")


def test_rest_of_a_rejected_body_times_out(keyed: Server) -> None:
    with open_connection(keyed) as client:
        client.sendall(head(500))
        assert client.recv(65536).startswith(b"HTTP/1.1 401 ")
        assert is_cut_off(client, b"x", 60, 0.1), "6 seconds; the server waits for 1"


def test_garbage_is_never_answered_within_an_answer(keyed: Server) -> None:
    body = json.dumps({"model": "tiny", "prompt": "2 + 2", "max_tokens": 500, "stream": True, "lopa": LONG}).encode()
    raw_request = head(len(body), "Authorization: Bearer a-key") + body
    with open_connection(keyed) as client:
        client.sendall(raw_request)
        received = client.recv(65536)
        client.sendall(b"no request\r\n\r\n")
        received += until_end(client)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"data: [DONE]" in received
    for unread in (head(500).replace(b"Content-Length: 500", b"Transfer-Encoding: chunked"), raw_request[:1]):
        with open_connection(keyed) as client:
            client.sendall(unread + b"no chunk, no request\r\n\r\n")
            received = until_end(client)
        assert received.endswith(b"\r\n\r\nInvalid HTTP request received.")
        assert received.count(b"HTTP/1.1 ") == 1


def test_expect_100_continue_is_answered_and_closes(keyed: Server) -> None:
    """Check that the connection closes, since the body may or may not follow."""
    with open_connection(keyed) as client:
        client.sendall(head(len(GOOD), "Expect: 100-continue"))
        received = until_end(client)
        assert received.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in received
    with open_connection(keyed) as client:
        client.sendall(head(len(GOOD), "Expect: 100-continue", "Authorization: Bearer a-key"))
        assert client.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(GOOD)
        assert until_end(client).startswith(b"HTTP/1.1 200 ")


def test_client_that_reads_nothing_is_disconnected(server: Server) -> None:
    """Request more than any system buffers, and read nothing for longer than --stall."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        for there in (True, False):
            server.until(lambda there=there: bool(own_connections(server, client.getsockname()[1])) == there)


def own_connections(server: Server, port: int) -> list[str]:
    """Return the server process's connections with a client on `port`."""
    inodes = set()
    for path in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            inodes.add(str(path.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line[9] for line in lines if line[2].endswith(f":{port:04X}") and f"socket:[{line[9]}]" in inodes]


ODD = {
    b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n": 400,
    b"CONNECT /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc": 400,
    b"DESCRIBE rtsp://localhost RTSP/1.0\r\nHost: localhost\r\n\r\n": 400,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n": 400,
    b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n": 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n": 400,
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 404,
    b"TRACE /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 405,
    b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 200,
    b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 200,
    b"GET //localhost HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n": 404,
}
"""First bytes of a connection, and the status of its answer."""


def test_every_method_and_target_is_answered_logged_and_counted(chat_bundle: Path) -> None:
    with serving(chat_bundle) as server:
        for sent, status in ODD.items():
            with open_connection(server) as client:
                client.sendall(sent)
                received = until_end(client)
            assert received.startswith(b"HTTP/1.1 %d " % status), (sent, received)
            assert received.count(b"HTTP/1.1 ") == 1
        invalid = [sent for sent, status in ODD.items() if status == 400]
        assert server.metric('lopa_rejected_total{model="tiny",reason="bad_request"') == len(invalid)
        code, output = server.stop()
    *lines, last = output.splitlines()
    assert (code, last) == (0, STOPPING)
    assert len(lines) == len(invalid)
    assert all(INVALID in line for line in lines), output
    assert "CONNECT is not supported" in lines[0]


def completion_request(tokens: int, *, stream: bool = False) -> bytes:
    """Return a complete request for an answer of `tokens` tokens, one forward each."""
    body = {"model": "tiny", "prompt": "2 + 2", "max_tokens": tokens, "stream": stream, "lopa": LONG}
    text = json.dumps(body).encode()
    return head(len(text)) + text


@pytest.mark.parametrize(
    ("suffix", "stream"),
    [
        (b"GARBAGE\r\n\r\n", False),
        (b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n", True),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", False),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n", True),
        (b"\x00" * 200_000, False),
    ],
    ids=["garbage", "connect", "header", "chunk", "long"],
)
def test_complete_request_is_answered_before_garbage(server: Server, suffix: bytes, stream: bool) -> None:
    """Send the extra bytes with the request or while it is answered. They are never answered in its place."""
    for pause in (0.0, 0.05):
        with open_connection(server) as client:
            client.sendall(completion_request(100, stream=stream) + (b"" if pause else suffix))
            if pause:
                time.sleep(pause)
                client.sendall(suffix)
            received = until_end(client)
        assert received.startswith(b"HTTP/1.1 200 ")
        assert received.count(b"HTTP/1.1 ") == 1
        assert (b"data: [DONE]" if stream else b'"completion_tokens":100') in received


def test_pipelined_requests_are_answered_before_garbage(server: Server) -> None:
    with open_connection(server) as client:
        client.sendall(
            completion_request(20)
            + b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
            + completion_request(3)
            + b"\x00\x01\r\n\r\n"
        )
        with client.makefile("rb") as received:
            replies = [next_answer(received) for _ in range(3)]
            assert received.read() == b""
    assert [status for status, _ in replies] == [200, 200, 200]
    assert [each["usage"]["completion_tokens"] for _, each in (replies[0], replies[2])] == [20, 3]


def test_half_a_request_does_not_cut_the_answer_before(keyed: Server) -> None:
    """Check that the half times out after --stall (1 second) while the complete request still runs."""
    raw_request = completion_request(500).replace(b"Host: localhost", b"Host: localhost\r\nAuthorization: Bearer a-key")
    with open_connection(keyed) as client:
        client.sendall(raw_request + b"POST /v1/comp")
        received = until_end(client)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"completion_tokens":500' in received


@pytest.mark.parametrize(
    ("upgrade", "chunked"),
    [("HTTP2-Settings: AAMAAABkAARAAAAA\r\nUpgrade: h2c", False), ("Upgrade: TLS/1.0", True)],
)
def test_requests_with_an_upgrade_header_keep_their_body(server: Server, upgrade: str, chunked: bool) -> None:
    """Send what Java's HttpClient and curl --http2 send: the body in a part of its own, or not."""
    lines = (f"Connection: Upgrade, HTTP2-Settings\r\n{upgrade}", "Content-Type: application/json")
    sent = head(len(GOOD), *lines)
    body = GOOD
    if chunked:
        sent = sent.replace(b"Content-Length: %d" % len(GOOD), b"Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    with open_connection(server) as client, client.makefile("rb") as received:
        for parts in ((sent + body,), (sent, body), (sent[:90], sent[90:] + body[:9], body[9:]), ((sent + body) * 2,)):
            for part in parts:
                client.sendall(part)
                time.sleep(0.05)
            for _ in range(b"".join(parts).count(b"POST")):
                status, answer = next_answer(received)
                assert (status, answer["object"]) == (200, "text_completion")


def test_a_stream_to_an_http_1_0_client_has_no_chunks(server: Server) -> None:
    def sent(version: bytes, **fields: Any) -> tuple[bytes, bytes]:
        body = json.dumps({**json.loads(GOOD), **fields}).encode()
        with open_connection(server) as client:
            client.sendall(head(len(body), "Connection: close").replace(b"HTTP/1.1", version) + body)
            received, _, content = until_end(client).partition(b"\r\n\r\n")
            return received.lower(), content

    old_head, old = sent(b"HTTP/1.0", stream=True)
    assert b"transfer-encoding" not in old_head
    assert b"content-length" not in old_head
    assert all(line.startswith((b"data: ", b": ")) for line in old.splitlines() if line)
    assert old.endswith(b"data: [DONE]\n\n")
    assert b"transfer-encoding: chunked" in sent(b"HTTP/1.1", stream=True)[0]
    whole_head, whole = sent(b"HTTP/1.0")
    assert b"content-length: %d" % len(whole) in whole_head
    assert json.loads(whole)["object"] == "text_completion"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tokens", [4, 600], ids=["short", "long"])
def test_half_closed_client_is_answered(server: Server, stream: bool, tokens: int) -> None:
    """Check half-closed clients. The server probes long ones with interim responses or stream comments."""
    server.until_idle()
    cancelled = server.metric("lopa_cancelled_total")
    with open_connection(server) as client:
        client.sendall(completion_request(tokens, stream=stream))
        client.shutdown(socket.SHUT_WR)
        received = until_end(client)
    while received.startswith(interim := b"HTTP/1.1 100 Continue\r\n\r\n"):
        assert tokens == 600
        assert not stream
        received = received.removeprefix(interim)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert (b"data: [DONE]" if stream else b'"completion_tokens":%d' % tokens) in received
    assert server.metric("lopa_cancelled_total") == cancelled


@pytest.mark.parametrize(
    ("way", "version", "stream"),
    [
        ("close", b"1.1", False),
        ("half-close then close", b"1.1", True),
        ("half-close then close", b"1.0", False),
        ("reset", b"1.1", True),
    ],
)
def test_client_disconnect_cancels_the_request(server: Server, stream: bool, version: bytes, way: str) -> None:
    server.until_idle()
    cancelled, steps = server.metric("lopa_cancelled_total"), server.metric("lopa_steps_total")
    with open_connection(server) as client:
        client.sendall(completion_request(1000, stream=stream).replace(b"HTTP/1.1", b"HTTP/" + version))
        server.until(lambda: server.metric("lopa_requests_running") == 1)
        if way == "half-close then close":
            client.shutdown(socket.SHUT_WR)
            time.sleep(0.1)
        elif way == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.until_idle()
    assert server.metric("lopa_cancelled_total") - cancelled == 1
    assert server.metric("lopa_steps_total") - steps < 990


def test_half_closed_client_gets_all_pipelined_answers(server: Server) -> None:
    ready = b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with open_connection(server) as client:
        client.sendall(completion_request(10) + ready + completion_request(5) + ready + b"POST /v1/comp")
        client.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as received:
            assert [next_answer(received)[0] for _ in range(4)] == [200] * 4
            assert received.read() == b""


def test_client_disconnect_cancels_pipelined_requests(server: Server) -> None:
    server.until_idle()
    cancelled = server.metric("lopa_cancelled_total")
    with open_connection(server) as client:
        client.sendall(completion_request(1000) + completion_request(5))
        server.until(lambda: server.metric("lopa_requests_running") == 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    server.until_idle()
    assert server.metric("lopa_cancelled_total") - cancelled == 1
