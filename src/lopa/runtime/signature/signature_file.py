"""The signature file: a Sigstore bundle with a DSSE envelope (Dead Simple Signing Envelope) around a statement.

The statement is an in-toto statement with the digest of each file. All three are as OpenSSF Model Signing 1.0 defines
them. The structs below are written and read. Nothing in this module verifies a signature.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import value_from_json

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_EXPECTED = "a signature file of OpenSSF Model Signing 1.0"
_EXPECTED_STATEMENT = "a statement of OpenSSF Model Signing 1.0 with sha256 digests of files"
_REMEDY = "sign the folder again: lopa-export sign BUNDLE --key KEY"

_PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


class _KeyHint(msgspec.Struct):
    hint: str = ""


class _Certificate(msgspec.Struct, rename="camel"):
    raw_bytes: bytes


class _Chain(msgspec.Struct):
    certificates: Annotated[list[_Certificate], Meta(min_length=1, max_length=16)]


class _Material(msgspec.Struct, rename="camel"):
    public_key: _KeyHint | UnsetType | None = UNSET
    x509_certificate_chain: _Chain | UnsetType | None = UNSET
    tlog_entries: Any = []


class _Signature(msgspec.Struct):
    sig: bytes
    keyid: Any = ""


class _Envelope(msgspec.Struct, rename="camel"):
    payload: bytes
    payload_type: Literal["application/vnd.in-toto+json"]
    signatures: Annotated[list[_Signature], Meta(min_length=1, max_length=1)]


class SignatureFile(msgspec.Struct, rename="camel"):
    """A statement, its signature, and what identifies the signer."""

    media_type: str
    verification_material: _Material
    dsse_envelope: _Envelope

    @property
    def key_hint(self) -> str:
        """Hex sha256 of the signer's public key in PEM. Empty with certificates and in files of older tools."""
        return self.verification_material.public_key.hint if self.verification_material.public_key else ""

    @property
    def certificates(self) -> list[bytes]:
        """Certificates in DER: the signer's, then those that lead to a root. Empty with a key alone."""
        chain = self.verification_material.x509_certificate_chain
        return [each.raw_bytes for each in chain.certificates] if chain else []


class _Resource(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=4096)]
    digest: _Digest
    algorithm: Literal["sha256"]


class _Serialization(msgspec.Struct):
    method: Literal["files"]
    hash_type: Literal["sha256"]
    allow_symlinks: Any = False
    ignore_paths: Any = []


class _Predicate(msgspec.Struct):
    serialization: _Serialization
    resources: list[_Resource]


class _SubjectDigest(msgspec.Struct):
    sha256: _Digest


class _Subject(msgspec.Struct):
    digest: _SubjectDigest
    name: Any = ""


class _Statement(msgspec.Struct, rename="camel"):
    type: Literal["https://in-toto.io/Statement/v1"] = msgspec.field(name="_type")
    predicate_type: Literal["https://model_signing/signature/v1.0"]
    subject: Annotated[list[_Subject], Meta(min_length=1, max_length=1)]
    predicate: _Predicate


def signed_bytes(payload: bytes) -> bytes:
    """Return the bytes that a signature of `payload` covers (DSSE's pre-authentication encoding)."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def file_from_signature(payload: bytes, signature: bytes, key_hint: str, certificates: Sequence[bytes]) -> bytes:
    """Return the content of a signature file. The key is named only without certificates."""
    material = _Material(public_key=_KeyHint(key_hint))
    if certificates:
        material = _Material(x509_certificate_chain=_Chain([_Certificate(each) for each in certificates]))
    envelope = _Envelope(payload, _PAYLOAD_TYPE, [_Signature(signature)])
    return msgspec.json.encode(SignatureFile(_MEDIA_TYPE, material, envelope)) + b"\n"


def file_from_json(text: bytes, *, source: str) -> SignatureFile:
    """Return the content of a signature file. Nothing is verified. Raises BadInputError for another format."""
    found = value_from_json(text, SignatureFile, source=source, expected=_EXPECTED, remedy=_REMEDY)
    if bool(found.verification_material.public_key) == bool(found.certificates):
        raise BadInputError(f"{source} has no key or certificate", expected=_EXPECTED, remedy=_REMEDY)
    return found


def statement_from_digests(name: str, digests: Mapping[str, str], ignored: str) -> bytes:
    """Return the statement for the folder `name` with the hex sha256 of each file by its path.

    `ignored` is the file that the signature is written to.
    """
    resources = [_Resource(path, digest, "sha256") for path, digest in digests.items()]
    predicate = _Predicate(_Serialization("files", "sha256", ignore_paths=[ignored]), resources)
    subject = _Subject(_SubjectDigest(_root_digest(digests)), name)
    statement = _Statement(
        "https://in-toto.io/Statement/v1", "https://model_signing/signature/v1.0", [subject], predicate
    )
    return msgspec.json.encode(statement)


def digests_from_statement(text: bytes, *, source: str) -> dict[str, str]:
    """Return the hex sha256 of each signed file by its path.

    Raises BadInputError for a statement of another kind, a file listed twice, or digests that contradict the subject.
    """
    statement = value_from_json(text, _Statement, source=source, expected=_EXPECTED_STATEMENT, remedy=_REMEDY)
    resources = statement.predicate.resources
    digests = {each.name: each.digest for each in resources}
    if len(digests) < len(resources) or _root_digest(digests) != statement.subject[0].digest.sha256:
        raise BadInputError(f"{source} contradicts itself", expected=_EXPECTED_STATEMENT, remedy=_REMEDY)
    return digests


def _root_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 of all digests in the order of the statement. Tools sort paths in different ways."""
    return hashlib.sha256(bytes.fromhex("".join(digests.values()))).hexdigest()
