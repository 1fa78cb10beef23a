"""Keys that clients show. Each is held against all of them in a time that tells nothing of what is right."""

import hmac
from hashlib import sha256
from pathlib import Path

from starlette.requests import Request

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import bytes_from_file, refused_as_bad_input
from lopa.serve.http.api_error import ApiError

_MOST_BYTES = 2**20
_REMEDY = "write one key a line; empty lines and lines that begin with # are skipped"


class ApiKeys:
    """The keys of a file; of each only a digest is kept."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def check(self, request: Request) -> None:
        """Raise ApiError 401 unless the request shows one of the keys."""
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        shown = _digest(key.strip().encode("latin-1"))  # the bytes of the header, as Starlette reads them
        found = [hmac.compare_digest(shown, digest) for digest in self._digests]  # all of them, found or not
        if kind.lower() != "bearer" or not any(found):
            raise ApiError(
                401,
                "no API key, or a wrong one: send Authorization: Bearer KEY",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )


def keys_from_file(path: Path) -> ApiKeys:
    """Raises BadInputError for a file that cannot be read or has no key."""
    content = bytes_from_file(path, expected="a file of API keys", remedy=_REMEDY, most=_MOST_BYTES)
    with refused_as_bad_input(str(path), expected="UTF-8", remedy=_REMEDY):
        lines = [line.strip() for line in content.decode("utf-8").splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys or any(" " in key for key in keys):
        raise BadInputError(
            f"{path} with {len(keys)} keys",
            expected="at least one key, and none with a space in it",
            remedy=_REMEDY,
        )
    return ApiKeys(keys)


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
