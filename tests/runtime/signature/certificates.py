"""Keys and certificates for tests, made by the library cryptography."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def write_keys(folder: Path, name: str, curve: ec.EllipticCurve | None = None, password: str = "") -> tuple[Path, Path]:
    """Write a new key pair and return the paths of the private and the public key."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    public.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return private, public


class Authority:
    """A certificate authority with one root, that issues certificates of signers and of further authorities."""

    def __init__(
        self,
        name: str = "root",
        issuer: "Authority | None" = None,
        *,
        is_authority: bool = True,
        purpose: x509.ObjectIdentifier | None = None,
        usage: x509.KeyUsage | None = None,
        days: tuple[int, int] = (-60, 60),
    ) -> None:
        self.key, self.name = ec.generate_private_key(ec.SECP256R1()), name
        extensions: list[x509.ExtensionType] = [
            x509.BasicConstraints(ca=is_authority, path_length=None),
            usage or key_usage(signs_certificates=True),
        ]
        if purpose is not None:
            extensions.append(x509.ExtendedKeyUsage([purpose]))
        self.certificate = _certificate(name, self.key.public_key(), issuer or self, extensions, days)

    def write(self, path: Path) -> Path:
        path.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return path

    def issue(self, public_key: Path, path: Path, *, days: tuple[int, int] = (-1, 30), **changes: Any) -> Path:
        """Write the certificate of a signer. `changes` replace its usage or its purpose, or leave them out (None)."""
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        extensions: list[x509.ExtensionType] = [x509.BasicConstraints(ca=False, path_length=None)]
        usage = changes.get("usage", key_usage())
        purpose = changes.get("purpose", ExtendedKeyUsageOID.CODE_SIGNING)
        if usage is not None:
            extensions.append(usage)
        if purpose is not None:
            extensions.append(x509.ExtendedKeyUsage([purpose]))
        key: Any = load_pem_public_key(public_key.read_bytes())
        path.write_bytes(_certificate("signer", key, self, extensions, days).public_bytes(Encoding.PEM))
        return path


def key_usage(*, signs_certificates: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    issuer: Authority,
    extensions: list[x509.ExtensionType],
    days: tuple[int, int],
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer.name))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(issuer.key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
