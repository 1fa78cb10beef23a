"""The signature file: a Sigstore bundle with a DSSE envelope (Dead Simple Signing Envelope) around the statement."""

import json
from base64 import b64encode
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from lopa.runtime.errors import BadInputError
from lopa.runtime.files.untrusted_input import value_from_json

_MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_EXPECTED = "a signature file of OpenSSF Model Signing 1.0"
_REMEDY = "sign the folder again: lopa-export sign BUNDLE --key KEY"


@dataclass(frozen=True)
class Envelope:
    """A statement, its signature, and what identifies the signer."""

    payload: bytes
    signature: bytes
    key_hint: str | None
    """Hex sha256 of the public key in PEM, or None with certificates."""
    certificates: tuple[bytes, ...] = ()
    """Certificates in DER: the signer's, then those that lead to a root."""


class _KeyHint(msgspec.Struct, rename="camel"):
    hint: str = ""


class _Certificate(msgspec.Struct, rename="camel"):
    raw_bytes: bytes


class _Chain(msgspec.Struct, rename="camel"):
    certificates: Annotated[list[_Certificate], Meta(min_length=1, max_length=16)]


class _Material(msgspec.Struct, rename="camel"):
    public_key: _KeyHint | None = None
    x509_certificate_chain: _Chain | None = None


class _Signature(msgspec.Struct, rename="camel"):
    sig: bytes


class _Dsse(msgspec.Struct, rename="camel"):
    payload: bytes
    payload_type: str
    signatures: Annotated[list[_Signature], Meta(min_length=1, max_length=1)]


class _SigstoreBundle(msgspec.Struct, rename="camel"):
    media_type: str
    verification_material: _Material
    dsse_envelope: _Dsse


def signed_bytes(payload: bytes) -> bytes:
    """Return the bytes that a signature of `payload` covers (DSSE's pre-authentication encoding)."""
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD_TYPE), _PAYLOAD_TYPE.encode(), len(payload), payload)


def json_from_envelope(envelope: Envelope) -> bytes:
    """Return the content of a signature file."""
    material: dict[str, object] = {"publicKey": {"hint": envelope.key_hint}}
    if envelope.certificates:
        material = {
            "x509CertificateChain": {"certificates": [{"rawBytes": _base64(each)} for each in envelope.certificates]}
        }
    content = {
        "mediaType": _MEDIA_TYPE,
        "verificationMaterial": {**material, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": _base64(envelope.payload),
            "payloadType": _PAYLOAD_TYPE,
            "signatures": [{"sig": _base64(envelope.signature), "keyid": ""}],
        },
    }
    return json.dumps(content).encode() + b"\n"


def envelope_from_json(text: bytes, *, source: str) -> Envelope:
    """Return the content of a signature file. Nothing is verified. Raises BadInputError for another format."""
    found = value_from_json(text, _SigstoreBundle, source=source, expected=_EXPECTED, remedy=_REMEDY)
    material, dsse = found.verification_material, found.dsse_envelope
    chain = material.x509_certificate_chain
    if dsse.payload_type != _PAYLOAD_TYPE or (material.public_key is None) == (chain is None):
        raise BadInputError(f"{source} has no key or certificate", expected=_EXPECTED, remedy=_REMEDY)
    return Envelope(
        payload=dsse.payload,
        signature=dsse.signatures[0].sig,
        key_hint=None if material.public_key is None else material.public_key.hint,
        certificates=() if chain is None else tuple(each.raw_bytes for each in chain.certificates),
    )


def _base64(content: bytes) -> str:
    return b64encode(content).decode()
