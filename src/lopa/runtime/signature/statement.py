"""The signed statement: an in-toto statement with the digest of each file (OpenSSF Model Signing 1.0)."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import value_from_json

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_EXPECTED = "a statement of OpenSSF Model Signing 1.0 with sha256 digests of files"
_REMEDY = "sign the folder again: lopa-export sign BUNDLE --key KEY"

_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _Resource(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: _Digest
    algorithm: Literal["sha256"]


class _Serialization(msgspec.Struct):
    method: Literal["files"]
    hash_type: Literal["sha256"]


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: list[_Resource]


class _SubjectDigest(msgspec.Struct):
    sha256: _Digest


class _Subject(msgspec.Struct):
    digest: _SubjectDigest


class _Statement(msgspec.Struct, rename="camel"):
    type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type")
    predicate_type: Literal["https://model_signing/signature/v1.0"]
    subject: Annotated[list[_Subject], Meta(min_length=1, max_length=1)]
    predicate: _Predicate


def statement_from_digests(name: str, digests: Mapping[str, str], ignored: str) -> bytes:
    """Return the statement for the folder `name` with the hex sha256 of each file by its path.

    `ignored` is the file that the signature is written to.
    """
    resources = [{"name": path, "digest": digests[path], "algorithm": "sha256"} for path in sorted(digests)]
    statement = {
        "_type": _STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": _root_digest(digests)}}],
        "predicateType": _PREDICATE,
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [ignored],
            },
            "resources": resources,
        },
    }
    return json.dumps(statement).encode()


def digests_from_statement(text: bytes, *, source: str) -> dict[str, str]:
    """Return the hex sha256 of each signed file by its path.

    Raises BadInputError for a statement of another kind, a file listed twice, or digests that contradict the subject.
    """
    statement = value_from_json(text, _Statement, source=source, expected=_EXPECTED, remedy=_REMEDY)
    resources = statement.predicate.resources
    digests = {each.name: each.digest for each in resources}
    if len(digests) < len(resources) or _root_digest(digests) != statement.subject[0].digest.sha256:
        raise BadInputError(f"{source} contradicts itself", expected=_EXPECTED, remedy=_REMEDY)
    return digests


def _root_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 of all digests in the order of the paths."""
    return hashlib.sha256(b"".join(bytes.fromhex(digests[path]) for path in sorted(digests))).hexdigest()
