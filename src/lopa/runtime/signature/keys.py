"""Keys and certificates of signatures, by the library cryptography.

Keys are elliptic curve keys P-256, P-384 or P-521 in PEM, as in OpenSSF Model Signing.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lopa.runtime.errors import BadInputError, CheckFailedError, raise_if_from_handler
from lopa.runtime.extra import extra_needed
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.signature.envelope import Envelope, signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate

_MODULES = {"cryptography"}
_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}
"""Hash of a signature by the curve of the key. Other curves may have the same sizes."""
_KEY = "a private elliptic curve key (P-256, P-384 or P-521) in PEM"
_TRUSTED = "public keys or root certificates in PEM"
_MAX_BYTES = 2**20
_UNTRUSTED = "do not use this bundle, or trust its signer with the matching key or root certificate"


@dataclass(frozen=True)
class Signer:
    """A private key, and optionally the certificates that vouch for it."""

    key: "EllipticCurvePrivateKey"
    certificates: tuple[bytes, ...] = ()
    """Certificates in DER: the signer's, then those that lead to a root."""

    def envelope(self, payload: bytes) -> Envelope:
        """Return the signed `payload`."""
        signature = self.key.sign(signed_bytes(payload), _ecdsa(self.key.curve.name))
        hint = None if self.certificates else _hint(self.key.public_key())
        return Envelope(payload, signature, hint, self.certificates)


@dataclass(frozen=True)
class Trust:
    """Public keys and root certificates whose signatures are accepted."""

    keys: "tuple[EllipticCurvePublicKey, ...]"
    roots: "tuple[Certificate, ...]"

    def check(self, envelope: Envelope, *, source: str) -> None:
        """Raise CheckFailedError unless the statement of `envelope` was signed by a trusted key or certificate."""
        from cryptography.exceptions import InvalidSignature

        keys = [self._key_of_certificates(envelope, source=source)] if envelope.certificates else self._keys(envelope)
        for key in keys:
            try:
                key.verify(envelope.signature, signed_bytes(envelope.payload), _ecdsa(key.curve.name))
            except InvalidSignature:
                continue
            return
        what = "its signature does not match its content" if keys else "it was signed with another key"
        raise CheckFailedError(
            f"{source} is not trusted: {what}", expected="a signature by a trusted key", remedy=_UNTRUSTED
        )

    def _keys(self, envelope: Envelope) -> "list[EllipticCurvePublicKey]":
        return [key for key in self.keys if envelope.key_hint in ("", _hint(key))]

    def _key_of_certificates(self, envelope: Envelope, *, source: str) -> "EllipticCurvePublicKey":
        """Return the key of the signer's certificate. Raises CheckFailedError unless a trusted root vouches for it."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

        try:
            if not self.roots:
                raise VerificationError("no root certificate is trusted")
            leaf, *others = [x509.load_der_x509_certificate(each) for each in envelope.certificates]
            policy = PolicyBuilder().store(Store(list(self.roots)))  # at the current time
            verifier = policy.extension_policies(ca_policy=_issuer_policy(), ee_policy=_signer_policy())
            verifier.build_client_verifier().verify(leaf, others)
            key = leaf.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
                raise VerificationError("its key is not on the curve P-256, P-384 or P-521")
        except Exception as error:  # parsers of certificates have many kinds of errors, e.g. InvalidVersion
            raise_if_from_handler(error)
            raise CheckFailedError(
                f"{source} is not trusted: its certificate is not valid ({str(error) or type(error).__name__})",
                expected="a certificate for code signing, valid today, from a trusted root",
                remedy=_UNTRUSTED,
            ) from error
        return key


def signer_from_files(
    key: Path, password: bytes | None, certificate: Path | None = None, chain: Sequence[Path] = ()
) -> Signer:
    """Return the signer with the private key in the file `key`.

    `certificate` is the signer's, and `chain` has those of its issuers. Raises BadInputError for files of another
    kind, for a wrong password, and for a certificate of another key. Raises MissingBackendError without cryptography.
    """
    with _needed():
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    remedy = "check the file and its password"
    text = bytes_from_file(key, expected=_KEY, remedy=remedy, max=_MAX_BYTES)
    try:
        found: Any = load_pem_private_key(text, password)
        if not isinstance(found, ec.EllipticCurvePrivateKey) or found.curve.name not in _HASHES:
            raise ValueError("a key of another kind")
    except (ValueError, TypeError) as error:
        raise BadInputError(f"{key}: {_reason(error)}", expected=_KEY, remedy=remedy) from error
    if certificate is None:
        return Signer(found)
    certificates = [each for path in (certificate, *chain) for each in _certificates(path)]
    if certificates[0].public_key() != found.public_key():
        raise BadInputError(
            f"{certificate} belongs to another key than {key}",
            expected="the certificate of the private key",
            remedy="give the matching pair",
        )
    return Signer(found, tuple(each.public_bytes(Encoding.DER) for each in certificates))


def is_encrypted(key: Path) -> bool:
    """Return True if the private key in the file `key` needs a password."""
    return b"ENCRYPTED" in bytes_from_file(key, expected=_KEY, remedy="check the path", max=_MAX_BYTES)


def trust_from_files(paths: Sequence[Path | str]) -> Trust:
    """Return the public keys and root certificates in PEM files.

    Raises BadInputError for other files and for none, and MissingBackendError without cryptography.
    """
    with _needed():
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    keys: list[Any] = []
    roots: list[Any] = []
    for path in map(Path, paths):
        text = bytes_from_file(path, expected=_TRUSTED, remedy="check the path", max=_MAX_BYTES)
        if b"CERTIFICATE" in text:
            roots += _certificates(path)
            continue
        try:
            key: Any = load_pem_public_key(text)
            if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in _HASHES:
                raise ValueError("a key of another kind")
        except ValueError as error:
            raise BadInputError(f"{path}: {_reason(error)}", expected=_TRUSTED, remedy="check the file") from error
        keys.append(key)
    if not keys and not roots:
        raise BadInputError("no trusted keys", expected=_TRUSTED, remedy="give at least one file")
    return Trust(tuple(keys), tuple(roots))


def _certificates(path: Path) -> "list[Certificate]":
    from cryptography.x509 import load_pem_x509_certificates

    text = bytes_from_file(path, expected="certificates in PEM", remedy="check the path", max=_MAX_BYTES)
    try:
        return load_pem_x509_certificates(text)
    except ValueError as error:
        raise BadInputError(
            f"{path}: {_reason(error)}", expected="certificates in PEM", remedy="check the file"
        ) from error


def _issuer_policy() -> Any:
    """Return the conditions for an issuer's certificate. The library checks that it is a certificate authority."""
    from cryptography.x509 import BasicConstraints, ExtendedKeyUsage, KeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID
    from cryptography.x509.verification import Criticality, ExtensionPolicy

    def check_usage(_policy: object, _certificate: object, extension: KeyUsage | None) -> None:
        if extension is not None and not extension.key_cert_sign:
            raise ValueError("an issuer may not sign certificates")

    def check_purpose(_policy: object, _certificate: object, extension: ExtendedKeyUsage | None) -> None:
        if extension is not None and ExtendedKeyUsageOID.CODE_SIGNING not in extension:
            raise ValueError("an issuer may not certify for codeSigning")

    return (
        ExtensionPolicy.permit_all()
        .require_present(BasicConstraints, Criticality.AGNOSTIC, None)
        .may_be_present(KeyUsage, Criticality.AGNOSTIC, check_usage)
        .may_be_present(ExtendedKeyUsage, Criticality.AGNOSTIC, check_purpose)
    )


def _signer_policy() -> Any:
    """Return the conditions for a signer's certificate: digital signatures and code signing."""
    from cryptography.x509 import ExtendedKeyUsage, KeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID
    from cryptography.x509.verification import Criticality, ExtensionPolicy

    def check_usage(_policy: object, _certificate: object, extension: KeyUsage) -> None:
        if not extension.digital_signature:
            raise ValueError("its key usage has no digitalSignature")

    def check_purpose(_policy: object, _certificate: object, extension: ExtendedKeyUsage) -> None:
        if ExtendedKeyUsageOID.CODE_SIGNING not in extension:
            raise ValueError("its extended key usage has no codeSigning")

    return (
        ExtensionPolicy.permit_all()
        .require_present(KeyUsage, Criticality.AGNOSTIC, check_usage)
        .require_present(ExtendedKeyUsage, Criticality.AGNOSTIC, check_purpose)
    )


def _ecdsa(curve: str) -> Any:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.ECDSA(getattr(hashes, _HASHES[curve])())


def _hint(key: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0][:200]


@contextmanager
def _needed() -> Iterator[None]:
    with extra_needed("sign", _MODULES, "the library cryptography"):
        yield
