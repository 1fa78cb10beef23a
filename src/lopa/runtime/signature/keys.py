"""Keys and certificates of signatures, by the library cryptography.

Keys are elliptic curve keys P-256, P-384 or P-521 in PEM, as in OpenSSF Model Signing.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lopa.runtime.errors import BadInputError, CheckFailedError, raise_if_from_handler
from lopa.runtime.extra import extra_needed
from lopa.runtime.files.untrusted_input import bytes_from_file
from lopa.runtime.signature.signature_file import SignatureFile, file_from_signature, signed_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.x509 import Certificate
    from cryptography.x509.verification import ExtensionPolicy

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
    certificates: Sequence[bytes] = ()
    """Certificates in DER: the signer's, then those that lead to a root."""

    def sign(self, payload: bytes) -> bytes:
        """Return the signature file of the statement `payload`."""
        signature = self.key.sign(signed_bytes(payload), _ecdsa(self.key))
        return file_from_signature(payload, signature, _hint(self.key.public_key()), self.certificates)


@dataclass(frozen=True)
class Trust:
    """Public keys and root certificates whose signatures are accepted."""

    keys: "tuple[EllipticCurvePublicKey, ...]"
    roots: "tuple[Certificate, ...]"

    def check(self, file: SignatureFile, *, source: str) -> None:
        """Raise CheckFailedError unless the statement in `file` was signed by a trusted key or certificate."""
        from cryptography.exceptions import InvalidSignature

        envelope = file.dsse_envelope
        keys = [key for key in self.keys if file.key_hint in ("", _hint(key))]
        if file.certificates:
            keys = [self._key_of_certificates(file.certificates, source=source)]
        for key in keys:
            try:
                key.verify(envelope.signatures[0].sig, signed_bytes(envelope.payload), _ecdsa(key))
            except InvalidSignature:
                continue
            return
        what = "its signature does not match its content" if keys else "it was signed with another key"
        raise CheckFailedError(
            f"{source} is not trusted: {what}", expected="a signature by a trusted key", remedy=_UNTRUSTED
        )

    def _key_of_certificates(self, certificates: Sequence[bytes], *, source: str) -> "EllipticCurvePublicKey":
        """Return the key of the signer's certificate. Raises CheckFailedError unless a trusted root vouches for it."""
        from cryptography import x509
        from cryptography.x509.verification import PolicyBuilder, Store

        try:
            if not self.roots:
                raise ValueError("no root certificate is trusted")
            leaf, *others = [x509.load_der_x509_certificate(each) for each in certificates]
            issuer, signer = _policies()
            policy = PolicyBuilder().store(Store(list(self.roots)))  # at the current time
            policy = policy.extension_policies(ca_policy=issuer, ee_policy=signer)
            policy.build_client_verifier().verify(leaf, others)
            key: EllipticCurvePublicKey = _elliptic_key(leaf.public_key())
        except Exception as error:  # parsers of certificates have many kinds of errors, e.g. InvalidVersion
            raise_if_from_handler(error)
            raise CheckFailedError(
                f"{source} is not trusted: its certificate is not valid ({_reason(error)})",
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
    with _cryptography_needed():
        from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    found = _from_pem(
        key,
        lambda text: _elliptic_key(load_pem_private_key(text, password)),
        expected=_KEY,
        remedy="check the file and its password",
    )
    if certificate is None:
        return Signer(found)
    paths = (certificate, *chain)
    certificates = [each for path in paths for each in _from_pem(path, _certificates, expected="certificates in PEM")]
    if certificates[0].public_key() != found.public_key():
        raise BadInputError(
            f"{certificate} belongs to another key than {key}",
            expected="the certificate of the private key",
            remedy="give the matching pair",
        )
    return Signer(found, [each.public_bytes(Encoding.DER) for each in certificates])


def is_encrypted(key: Path) -> bool:
    """Return True if the private key in the file `key` needs a password."""
    return b"ENCRYPTED" in bytes_from_file(key, expected=_KEY, remedy="check the path", max=_MAX_BYTES)


def trust_from_files(paths: Sequence[Path | str]) -> Trust:
    """Return the public keys and root certificates in PEM files.

    Raises BadInputError for other files and for none, and MissingBackendError without cryptography.
    """
    with _cryptography_needed():
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    keys: list[EllipticCurvePublicKey] = []
    roots: list[Certificate] = []

    def add(text: bytes) -> None:
        if b"CERTIFICATE" in text:
            roots.extend(_certificates(text))
        else:
            blocks = re.findall(rb"-----BEGIN.*?-----END[^\n]*", text, re.DOTALL) or [text]
            keys.extend(_elliptic_key(load_pem_public_key(block)) for block in blocks)

    for path in map(Path, paths):
        _from_pem(path, add, expected=_TRUSTED)
    if not keys and not roots:
        raise BadInputError("no trusted keys", expected=_TRUSTED, remedy="give at least one file")
    return Trust(tuple(keys), tuple(roots))


def _from_pem(path: Path, parse: Callable[[bytes], Any], *, expected: str, remedy: str = "check the file") -> Any:
    """Return the parsed content of the file at `path`. Raises BadInputError if it has another kind."""
    text = bytes_from_file(path, expected=expected, remedy=remedy, max=_MAX_BYTES)
    try:
        return parse(text)
    except Exception as error:  # of many kinds, e.g. UnsupportedAlgorithm
        raise_if_from_handler(error)
        raise BadInputError(f"{path}: {_reason(error)}", expected=expected, remedy=remedy) from error


def _certificates(text: bytes) -> "list[Certificate]":
    from cryptography.x509 import load_pem_x509_certificates  # slow to import, and keys do not need it

    return load_pem_x509_certificates(text)


def _elliptic_key(key: Any) -> Any:
    """Return `key`. Raises ValueError unless it is on the curve P-256, P-384 or P-521."""
    if "curve" not in dir(key) or key.curve.name not in _HASHES:
        raise ValueError("a key of another kind than P-256, P-384 and P-521")
    return key


def _policies() -> "tuple[ExtensionPolicy, ExtensionPolicy]":
    """Return the conditions for certificates of issuers, which the library checks to be authorities, and of signers."""
    from cryptography.x509 import BasicConstraints, ExtendedKeyUsage, KeyUsage
    from cryptography.x509.oid import ExtendedKeyUsageOID
    from cryptography.x509.verification import Criticality, ExtensionPolicy

    def needed(usage: str, has_usage: Callable[[Any], bool]) -> Callable[[object, object, Any], None]:
        def check(_policy: object, _certificate: object, extension: Any) -> None:
            if extension is not None and not has_usage(extension):
                raise ValueError(f"a certificate is not for {usage}")

        return check

    either = Criticality.AGNOSTIC
    certifying = needed("keyCertSign", lambda usage: usage.key_cert_sign)
    signing = needed("digitalSignature", lambda usage: usage.digital_signature)
    code = needed("codeSigning", lambda usage: ExtendedKeyUsageOID.CODE_SIGNING in usage)
    issuer = ExtensionPolicy.permit_all().require_present(BasicConstraints, either, None)
    issuer = issuer.may_be_present(KeyUsage, either, certifying).may_be_present(ExtendedKeyUsage, either, code)
    signer = ExtensionPolicy.permit_all().require_present(KeyUsage, either, signing)
    return issuer, signer.require_present(ExtendedKeyUsage, either, code)


def _ecdsa(key: "EllipticCurvePrivateKey | EllipticCurvePublicKey") -> "ECDSA":
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA

    return ECDSA(getattr(hashes, _HASHES[key.curve.name])())


def _hint(key: "EllipticCurvePublicKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return hashlib.sha256(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0][:200]


def _cryptography_needed() -> AbstractContextManager[None]:
    return extra_needed("sign", {"cryptography"}, "the library cryptography")
