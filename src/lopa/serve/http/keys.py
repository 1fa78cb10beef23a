"""API keys of clients. Each check compares all keys in constant time, so timing reveals nothing about them."""

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
"""Maximum bytes of a key. Common proxies and servers reject longer headers."""
_EXPECTED = f"keys of at most {_MAX_KEY_BYTES} bytes of visible characters without spaces"
_REMEDY = "write one key per line in UTF-8; empty lines and lines that begin with # are skipped"
_BEARER, _ANTHROPIC_HEADER = "bearer", "x-api-key"
_WHITESPACE = " \t\r"
"""White space that may surround a key in its line and in a header."""


class ApiKeys:
    """API keys of a file, stored as digests only."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def check(self, request: Request) -> None:
        """Raise ApiError 401 unless the request carries one of the keys, as OpenAI's or Anthropic's clients send it."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        if not kind and _ANTHROPIC_HEADER in request.headers:
            kind, key = _BEARER, request.headers[_ANTHROPIC_HEADER]
        sent = _digest(key.strip(_WHITESPACE).encode("latin-1"))  # the bytes of the header, as Starlette reads them
        matches = [
            hmac.compare_digest(sent, digest) for digest in self._digests
        ]  # compare all keys, so that the time is constant
        if kind.lower() != _BEARER or not any(matches):
            raise ApiError(
                401,
                "missing or invalid API key; send the header Authorization: Bearer KEY or x-api-key: KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def keys_from_file(path: Path) -> ApiKeys:
    """Return the API keys of a file: one per line, in UTF-8 with or without a byte-order mark.

    A key has visible characters only, as in `Authorization: Bearer KEY`: no spaces, control or zero-width characters,
    and at most 8192 bytes. Raises BadInputError for any other key, for a file without keys and for an unreadable file.
    The error names the line and never the key.
    """
    content = bytes_from_file(path, expected="a file of API keys", remedy=_REMEDY, max=_MAX_FILE_BYTES)
    keys: list[str] = []
    for number, line in enumerate(_decode_file(path, content).split("\n"), 1):
        key = line.strip(_WHITESPACE)
        if not key or key.startswith("#"):
            continue
        problem = _key_problem(key)
        if problem is not None:
            raise BadInputError(f"{path} line {number}: {problem}", expected=_EXPECTED, remedy=_REMEDY)
        keys.append(key)
    if not keys:
        raise BadInputError(f"{path} contains no key", expected="at least one key", remedy=_REMEDY)
    return ApiKeys(keys)


def _decode_file(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        raise BadInputError(
            f"{path} line {number} is not valid UTF-8", expected="a file in UTF-8", remedy="save it as UTF-8"
        ) from None  # the original error contains the whole file


def _key_problem(key: str) -> str | None:
    """Return why no client can send `key`, or None."""
    for character in key:
        if not character.isprintable() or character.isspace():
            name = unicodedata.name(character, "a control character")
            return f"the key contains {name} (U+{ord(character):04X})"
    if len(key.encode()) > _MAX_KEY_BYTES:
        return f"the key has {len(key.encode())} bytes"
    return None


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
