"""Validation of answers in tools/fuzz/answers.py."""

import socket

import pytest

pytest.importorskip("torch")

import tools.fuzz.answers
from tools.fuzz.answers import answers_of

ERROR = b'{"error": {"message": "m", "type": "t", "param": null, "code": "c"}}'
CHUNK = b'data: {"choices": []}\n\n'


def answer(status: int, body: bytes, *lines: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return "\r\n".join((f"HTTP/1.1 {status} X", f"Content-Length: {size}", *lines, "", "")).encode() + body


STREAMED = "Content-Type: text/event-stream"
JSON = "Content-Type: application/json"
GOOD = {
    "an answer": answer(200, b"{}", JSON),
    "an error": answer(400, ERROR, JSON),
    "several": answer(200, b"{}", JSON) + answer(404, ERROR),
    "a stream": answer(200, b": keep-alive\n\n" + CHUNK + b"data: [DONE]\n\n", STREAMED),
    "an error in a stream": answer(200, CHUNK + b"data: " + ERROR + b"\n\n", STREAMED),
    "what is no HTTP": answer(400, b"Invalid HTTP request received."),
}
BAD = {
    "a bug": answer(500, ERROR, JSON),
    "text": answer(400, b"no such thing"),
    "an error that lacks a part": answer(400, ERROR.replace(b', "code": "c"', b"")),
    "an error with another type": answer(400, ERROR.replace(b'"c"', b"5")),
    "an error without words": answer(400, ERROR.replace(b'"m"', b'""')),
    "a header of the client's": answer(200, b"{}", "A: b"),
    "half a JSON": answer(200, b"{", JSON),
    "a stream that ends": answer(200, CHUNK, STREAMED),
    "another answer in the midst": answer(200, b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    + answer(400, ERROR),
}


def received(sent: bytes) -> list[int]:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(sent)
        server.shutdown(socket.SHUT_WR)
        return [each.status for each in answers_of(client, bodies=True)]


@pytest.mark.parametrize("sent", GOOD.values(), ids=GOOD)
def test_valid_answers(sent: bytes) -> None:
    assert received(sent) == [int(part.split(b" ")[0]) for part in sent.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("sent", BAD.values(), ids=BAD)
def test_invalid_answers(sent: bytes) -> None:
    with pytest.raises((RuntimeError, ValueError, KeyError)):
        received(sent)


def test_silence_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.fuzz.answers, "TIMEOUT", 0.3)
    client, server = socket.socketpair()
    with client, server, pytest.raises(TimeoutError, match="no answer"):
        answers_of(client, bodies=True)
