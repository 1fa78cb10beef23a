"""Keys that clients show. Each is held against all of them in a time that tells nothing of what is right."""

import codecs
import hmac
import unicodedata
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.serve.http.api_error import ApiError

_MAX_FILE_BYTES = 2**20
_MAX_KEY_BYTES = 8192
"""Maximum bytes of a key: proxies and servers take no longer header."""
_EXPECTED = f"keys of visible characters without spaces, as clients send them, of at most {_MAX_KEY_BYTES} bytes"
_REMEDY = "write one key a line, in UTF-8; empty lines and lines that begin with # are skipped"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_BLANKS = " \t\r"
"""White space that is allowed around a key, in its line and in a header."""


class ApiKeys:
    """The keys of a file; of each only a digest is kept."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def check(self, request: Request) -> None:
        """Raise ApiError 401 unless the request shows one of the keys."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        shown = _digest(key.strip(_BLANKS).encode("latin-1"))  # the bytes of the header, as Starlette reads them
        found = [hmac.compare_digest(shown, digest) for digest in self._digests]  # all of them, found or not
        if kind.lower() != "bearer" or not any(found):
            raise ApiError(
                401,
                "no API key, or a wrong one: send Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def keys_from_file(path: Path) -> ApiKeys:
    """Return the keys of a file: one a line, in UTF-8 with or without a byte-order mark.

    A key is what a client can send in `Authorization: Bearer KEY`: characters that are visible, so no spaces, no
    control characters and none of width zero, and at most 8192 bytes. Raises BadInputError, with the number of the
    line and never with the key, for a file that has any other, has none or cannot be read.
    """
    content = bytes_from_file(path, expected="a file of API keys", remedy=_REMEDY, max=_MAX_FILE_BYTES)
    keys: list[str] = []
    for number, line in enumerate(_text_of_file(path, content).split("\n"), 1):
        key = line.strip(_BLANKS)
        if not key or key.startswith("#"):
            continue
        wrong = _fault_of_key(key)
        if wrong is not None:
            raise BadInputError(f"{path} line {number}: {wrong}", expected=_EXPECTED, remedy=_REMEDY)
        keys.append(key)
    if not keys:
        raise BadInputError(f"{path}: no key", expected="at least one key", remedy=_REMEDY)
    return ApiKeys(keys)


def _text_of_file(path: Path, content: bytes) -> str:
    if content.startswith(_UTF16):
        raise BadInputError(f"{path} is UTF-16", expected="a file in UTF-8", remedy="save it as UTF-8")
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise BadInputError(
            f"{path} line {number}: bytes that are not UTF-8", expected="a file in UTF-8", remedy="save it as UTF-8"
        ) from None  # the error holds the whole file


def _fault_of_key(key: str) -> str | None:
    """Why no client can show `key`, or None."""
    for character in key:
        if not character.isprintable() or character.isspace():
            name = unicodedata.name(character, "a control character")
            return f"a key with {name} (U+{ord(character):04X}) in it"
    if len(key.encode()) > _MAX_KEY_BYTES:
        return f"a key of {len(key.encode())} bytes"
    return None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
