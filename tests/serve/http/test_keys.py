"""API key files: keys that clients can send are accepted, others are rejected with their line number."""

from pathlib import Path

import pytest
from starlette.requests import Request
from tests.cli.command import lopa_export

from lopa.runtime.errors import BadInputError
from lopa.serve.http.api_error import ApiError
from lopa.serve.http.keys import keys_from_file

SECRET = "sk-secret"
REFUSED = {
    "comments only": (b"# a\n\n", "no key"),
    "NUL": (b"sk-good\nsk-secret\0\n", "line 2: the key contains a control character (U+0000)"),
    "zero width": (f"# ours\n{SECRET}\u200b\n".encode(), "line 2: the key contains ZERO WIDTH SPACE (U+200B)"),
    "byte-order mark inside": (
        f"one\n\ufeff{SECRET}\n".encode(),
        "line 2: the key contains ZERO WIDTH NO-BREAK SPACE (U+FEFF)",
    ),
    "a space": (b"sk-secret two\n", "line 1: the key contains SPACE (U+0020)"),
    "a line separator": (f"{SECRET}\u2028two\n".encode(), "LINE SEPARATOR"),
    "next line": (f"{SECRET}\u0085two\n".encode(), "U+0085"),
    "latin-1": (b"one\r\ntwo\r\nsk-secret\xe9\r\n", "line 3 is not valid UTF-8"),
    "utf-16 without a mark": (
        f"{SECRET}\n".encode("utf-16-le"),
        "line 1: the key contains a control character (U+0000)",
    ),
    "too long": (b"x\n" + 1000 * SECRET.encode(), "line 2: the key has 9000 bytes"),
}
KEYS = ["sk-one", "schlüssel", "voilà", "ключ", "a#b", "a", "x" * 8192, "!\"$%&'()*+,-./:;<=>?@[]^_`{|}~"]
"""Keys that curl and other byte-oriented clients can send."""
TAKEN = {
    "plain": "\n".join(KEYS).encode(),
    "with a mark": "\ufeff".encode() + "\n".join(KEYS).encode(),
    "from Windows": "\ufeff".encode() + "\r\n".join(KEYS).encode() + b"\r\n",
    "from an old Mac": "\r".join(KEYS).encode(),
    "with blanks and comments": ("# ours\n\n \t" + " \t\n\t ".join(KEYS) + "\n#end").encode(),
}


@pytest.mark.parametrize(("content", "message"), REFUSED.values(), ids=REFUSED)
def test_unsendable_key_is_rejected_with_its_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(BadInputError) as is_rejected:
        keys_from_file(path)
    assert str(path) in str(is_rejected.value)
    assert message in str(is_rejected.value)
    assert "secret" not in str(is_rejected.value)


def test_command_exits_with_2_and_hides_the_key(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(REFUSED["zero width"][0])
    done = lopa_export("serve", tmp_path / "no bundle", "--port", 0, "--api-keys", tmp_path / "keys")
    assert done.returncode == 2
    assert "keys line 2: the key contains ZERO WIDTH SPACE" in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize("content", TAKEN.values(), ids=TAKEN)
def test_every_accepted_key_can_be_sent(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    keys = keys_from_file(path)
    for key in KEYS:
        keys.check(request_with(key.encode()))
        for invalid in (key.encode() + b"x", "\ufeff".encode() + key.encode()):
            with pytest.raises(ApiError):
                keys.check(request_with(invalid))


def request_with(key: bytes) -> Request:
    return Request({"type": "http", "headers": [(b"authorization", b"Bearer " + key)]})
