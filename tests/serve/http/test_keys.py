"""Files of API keys: what is taken is what a client can show, and anything else is refused with its line."""

import socket
from pathlib import Path

import pytest
from starlette.requests import Request
from tests.cli.command import lopa_export
from tests.serve.servers import Server, serving

from lopa.runtime.errors import BadInputError
from lopa.serve.http.api_error import ApiError
from lopa.serve.http.keys import keys_from_file

SECRET = "sk-secret"
REFUSED = {
    "nothing": (b"", "no key"),
    "comments alone": (b"# a\n\n", "no key"),
    "a mark alone": (b"\xef\xbb\xbf\n", "no key"),
    "NUL": (b"sk-good\nsk-secret\0\n", "line 2: a key with a control character (U+0000)"),
    "zero width": (f"# ours\n{SECRET}\u200b\n".encode(), "line 2: a key with ZERO WIDTH SPACE (U+200B)"),
    "a mark inside": (f"one\n\ufeff{SECRET}\n".encode(), "line 2: a key with ZERO WIDTH NO-BREAK SPACE (U+FEFF)"),
    "a space": (b"sk-secret two\n", "line 1: a key with SPACE (U+0020)"),
    "a tab": (b"sk-secret\ttwo\n", "line 1: a key with a control character (U+0009)"),
    "a space that does not break": (f"{SECRET}\u00a0\n".encode(), "line 1: a key with NO-BREAK SPACE (U+00A0)"),
    "a soft hyphen": (f"sk\u00ad{SECRET}\n".encode(), "SOFT HYPHEN"),
    "a line separator": (f"{SECRET}\u2028two\n".encode(), "LINE SEPARATOR"),
    "vertical tab": (b"sk-secret\x0btwo\n", "U+000B"),
    "delete": (b"sk-secret\x7f\n", "U+007F"),
    "next line": (f"{SECRET}\u0085two\n".encode(), "U+0085"),
    "latin-1": (b"one\r\ntwo\r\nsk-secret\xe9\r\n", "line 3: bytes that are not UTF-8"),
    "utf-16": (f"{SECRET}\n".encode("utf-16"), "is UTF-16"),
    "utf-16 without a mark": (f"{SECRET}\n".encode("utf-16-le"), "line 1: a key with a control character (U+0000)"),
    "too long": (b"x\n" + 1000 * SECRET.encode(), "line 2: a key of 9000 bytes"),
}
KEYS = ["sk-one", "schlüssel", "voilà", "ключ", "a#b", "a", "x" * 8192, "!\"$%&'()*+,-./:;<=>?@[]^_`{|}~"]
"""Each is one that curl and other clients that send bytes can show."""
TAKEN = {
    "as it is": "\n".join(KEYS).encode(),
    "with a mark": "\ufeff".encode() + "\n".join(KEYS).encode(),
    "from Windows": "\ufeff".encode() + "\r\n".join(KEYS).encode() + b"\r\n",
    "from an old Mac": "\r".join(KEYS).encode(),
    "with blanks and comments": ("# ours\n\n \t" + " \t\n\t ".join(KEYS) + "\n#end").encode(),
}


@pytest.mark.parametrize(("content", "said"), REFUSED.values(), ids=REFUSED)
def test_a_key_that_no_client_can_show_is_refused_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as refused:
        keys_from_file(path)
    assert str(path) in str(refused.value)
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_command_ends_with_2_and_does_not_show_the_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(REFUSED["zero width"][0])
    done = lopa_export("serve", tmp_path / "no bundle", "--port", 0, "--api-keys", tmp_path / "keys")
    assert done.returncode == 2
    assert "keys line 2: a key with ZERO WIDTH SPACE" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("content", TAKEN.values(), ids=TAKEN)
def test_every_key_that_is_taken_can_be_shown(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    keys = keys_from_file(path)
    for key in KEYS:
        keys.check(showing(key.encode()))
        for wrong in (key.encode() + b"x", "\ufeff".encode() + key.encode()):
            with pytest.raises(ApiError):
                keys.check(showing(wrong))


def showing(key: bytes) -> Request:
    return Request({"type": "http", "headers": [(b"authorization", b"Bearer " + key)]})


def test_a_server_takes_the_keys_of_a_file_with_a_mark(chat_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(TAKEN["with a mark"])
    with serving(chat_bundle, "--api-keys", path) as server:
        for key in KEYS:
            assert status(server, key.encode()) == 200, key
            assert status(server, b" \t" + key.encode() + b" \t") == 200, key
            assert status(server, key.encode() + b"x") == 401


def status(server: Server, key: bytes) -> int:
    """Of an answer to a client that shows the bytes `key`."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        shown = b"Authorization: Bearer " + key
        client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + shown + b"\r\n\r\n")
        received = b""
        while part := client.recv(65536):
            received += part
    return int(received.split(b" ", 2)[1])
