"""Signed folders: what is accepted, what is refused, and signatures of OpenSSF's own tool."""

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.runtime.signature.certificates import Authority, key_usage, write_keys

from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.runtime.signature import check_signature, sign_folder, signer_from_files, trust_from_files
from lopa.runtime.signature.folder_signature import SIGNATURE_NAME
from lopa.runtime.signature.signature_file import digests_from_statement, statement_from_digests

RECORDED = Path(__file__).with_name("recorded")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    (path / "sub").mkdir(parents=True)
    (path / "a.txt").write_text("one")
    (path / "b.txt").write_text("two")
    (path / "sub" / "c.bin").write_bytes(bytes(1000))
    return path


@pytest.fixture
def keys(tmp_path: Path) -> tuple[Path, Path]:
    return write_keys(tmp_path, "signer")


def signed(folder: Path, private: Path, **certificates: Any) -> Path:
    sign_folder(folder, signer_from_files(private, None, **certificates))
    return folder


@pytest.mark.parametrize("curve", [ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1()], ids=lambda curve: curve.name)
def test_a_signed_folder_is_accepted_with_the_matching_key_only(
    folder: Path, tmp_path: Path, curve: ec.EllipticCurve
) -> None:
    private, public = write_keys(tmp_path, "signer", curve)
    _, other = write_keys(tmp_path, "other", curve)
    signed(folder, private)
    assert len(check_signature(folder, trust_from_files([public])).digests) == 3
    assert len(check_signature(folder, trust_from_files([other, public])).digests) == 3
    ring = other.with_name("ring.pem")
    ring.write_bytes(other.read_bytes() + public.read_bytes())
    assert len(check_signature(folder, trust_from_files([ring])).digests) == 3
    with pytest.raises(CheckFailedError, match="signed with another key"):
        check_signature(folder, trust_from_files([other]))


@pytest.mark.parametrize("kind", ["key", "certificate"])
def test_a_signature_of_model_signing_is_accepted(tmp_path: Path, kind: str) -> None:
    folder = Path(shutil.copytree(RECORDED / "folder", tmp_path / "f"))
    shutil.copy(RECORDED / f"{kind}.sig", folder / SIGNATURE_NAME)
    trust = trust_from_files([RECORDED / {"key": "key.pem", "certificate": "root.pem"}[kind]])
    assert len(check_signature(folder, trust).digests) == 3
    (folder / "a.txt").write_text("two\n")
    with pytest.raises(CheckFailedError, match=r"changed: a\.txt"):
        check_signature(folder, trust)


def list_files(folder: Path, private: Path, digests: Mapping[str, str], ignored: str = SIGNATURE_NAME) -> None:
    """Sign the list `digests` as another tool may, which leaves out the path `ignored`."""
    statement = statement_from_digests("folder", digests, ignored)
    (folder / SIGNATURE_NAME).write_bytes(signer_from_files(private, None).sign(statement))


@pytest.mark.parametrize("name", [".git/hook", ".gitattributes", ".gitignore", ".github/run.py", "sub/.git", "ignored"])
def test_no_file_outside_the_list(folder: Path, keys: tuple[Path, Path], name: str) -> None:
    trust = trust_from_files([keys[1]])
    digests = check_signature(signed(folder, keys[0]), trust).digests
    list_files(folder, keys[0], digests, ignored=Path(name).parts[0])
    assert check_signature(folder, trust).digests == digests
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    with pytest.raises(CheckFailedError, match=f"added: {name}"):
        check_signature(folder, trust)


def test_paths_may_be_listed_in_any_order(folder: Path, keys: tuple[Path, Path]) -> None:
    (folder / "sub-2").touch()
    trust = trust_from_files([keys[1]])
    digests = check_signature(signed(folder, keys[0]), trust).digests
    by_parts = sorted(digests, key=lambda name: name.split("/"))  # as model_signing sorts
    assert by_parts != list(digests)
    list_files(folder, keys[0], {name: digests[name] for name in by_parts})
    assert check_signature(folder, trust).digests == digests
    payload = base64.b64decode(json.loads((folder / SIGNATURE_NAME).read_text())["dsseEnvelope"]["payload"])
    subject = hashlib.sha256(bytes.fromhex("".join(digests[name] for name in by_parts))).hexdigest()
    assert json.loads(payload)["subject"][0]["digest"] == {"sha256": subject}


def test_the_file_has_the_fields_of_model_signing(folder: Path, keys: tuple[Path, Path]) -> None:
    def shape(value: Any) -> Any:
        return {name: shape(each) for name, each in value.items()} if isinstance(value, dict) else type(value)

    own = json.loads((signed(folder, keys[0]) / SIGNATURE_NAME).read_text())
    other = json.loads((RECORDED / "key.sig").read_text())
    assert shape(own) == shape(other)
    statements = [json.loads(base64.b64decode(each["dsseEnvelope"]["payload"])) for each in (own, other)]
    assert shape(statements[0]) == shape(statements[1])
    assert [own["mediaType"], own["dsseEnvelope"]["payloadType"]] == [
        other["mediaType"],
        other["dsseEnvelope"]["payloadType"],
    ]


def _swap(folder: Path) -> None:
    (folder / "a.txt").rename(folder / "x")
    (folder / "b.txt").rename(folder / "a.txt")
    (folder / "x").rename(folder / "b.txt")


def _flip_one_bit(folder: Path) -> None:
    content = bytearray((folder / "sub" / "c.bin").read_bytes())
    content[999] ^= 1
    (folder / "sub" / "c.bin").write_bytes(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_swap, r"changed: a\.txt, b\.txt"),
        (_flip_one_bit, r"changed: sub/c\.bin"),
        (lambda folder: (folder / "a.txt").unlink(), r"missing: a\.txt"),
        (lambda folder: (folder / "d").write_text(""), "added: d"),
        (lambda folder: (folder / "a.txt").rename(folder / "z.txt"), r"missing: a\.txt; added: z\.txt"),
        (lambda folder: [(folder / f"n{n}").write_text("") for n in range(9)], "added: .* and 4 more"),
    ],
    ids=["swapped", "bit", "removed", "added", "renamed", "many"],
)
def test_a_changed_folder_is_refused_with_the_names(
    folder: Path, keys: tuple[Path, Path], change: Callable[[Path], object], message: str
) -> None:
    signed(folder, keys[0])
    change(folder)
    with pytest.raises(CheckFailedError, match=message):
        check_signature(folder, trust_from_files([keys[1]]))


@pytest.mark.parametrize("target", ["inside", "outside"])
def test_links_are_refused(folder: Path, keys: tuple[Path, Path], tmp_path: Path, target: str) -> None:
    signed(folder, keys[0])
    moved = (folder if target == "inside" else tmp_path) / "moved"
    (folder / "a.txt").rename(moved)
    (folder / "a.txt").symlink_to(moved)
    with pytest.raises(BadInputError, match=r"a\.txt is a link"):
        check_signature(folder, trust_from_files([keys[1]]))
    with pytest.raises(BadInputError, match=r"a\.txt is a link"):
        signed(folder, keys[0])
    (folder / "a.txt").unlink()
    os.mkfifo(folder / "a.txt")
    with pytest.raises(BadInputError, match="no regular file"):
        signed(folder, keys[0])


def _edited(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    path = folder / SIGNATURE_NAME
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def _forge_statement(content: dict[str, Any]) -> None:
    envelope = content["dsseEnvelope"]
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["resources"][0]["digest"] = "0" * 64
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()


@pytest.mark.parametrize(
    ("edit", "error", "message"),
    [
        (_forge_statement, CheckFailedError, "does not match its content"),
        (lambda c: c["dsseEnvelope"]["signatures"][0].update(sig="AAAA"), CheckFailedError, "does not match"),
        (lambda c: c["verificationMaterial"]["publicKey"].update(hint="0" * 64), CheckFailedError, "another key"),
        (lambda c: c["dsseEnvelope"].update(payloadType="text/plain"), BadInputError, "expected: a signature file"),
        (lambda c: c["dsseEnvelope"].update(signatures=[]), BadInputError, "signatures"),
        (lambda c: c.update(verificationMaterial={}), BadInputError, "no key or certificate"),
        (lambda c: c.pop("dsseEnvelope"), BadInputError, "dsseEnvelope"),
    ],
)
def test_a_forged_or_malformed_signature_is_refused(
    folder: Path,
    keys: tuple[Path, Path],
    edit: Callable[[dict[str, Any]], object],
    error: type[Exception],
    message: str,
) -> None:
    signed(folder, keys[0])
    _edited(folder, edit)
    with pytest.raises(error, match=message):
        check_signature(folder, trust_from_files([keys[1]]))


def test_an_unreadable_signature_is_refused(folder: Path, keys: tuple[Path, Path]) -> None:
    trust = trust_from_files([keys[1]])
    with pytest.raises(CheckFailedError, match=r"is not signed: it has no model\.sig"):
        check_signature(folder, trust)
    whole = (signed(folder, keys[0]) / SIGNATURE_NAME).read_bytes()
    for content in (b"", whole[:-20], b"\xff", b"[]", b"{" * 10_000):
        (folder / SIGNATURE_NAME).write_bytes(content)
        with pytest.raises(BadInputError, match="a signature file of OpenSSF"):
            check_signature(folder, trust)


def test_certificates_lead_to_a_trusted_root(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    root = Authority()
    between = Authority("between", root)
    leaf = between.issue(keys[1], tmp_path / "leaf.pem")
    chain = [between.write(tmp_path / "between.pem")]
    signed(folder, keys[0], certificate=leaf, chain=chain)
    assert len(check_signature(folder, trust_from_files([root.write(tmp_path / "root.pem")])).digests) == 3
    for wrong in (Authority().write(tmp_path / "other.pem"), keys[1]):
        with pytest.raises(CheckFailedError, match="its certificate is not valid"):
            check_signature(folder, trust_from_files([wrong]))
    signed(folder, keys[0], certificate=leaf)  # without the certificate between
    with pytest.raises(CheckFailedError, match="its certificate is not valid"):
        check_signature(folder, trust_from_files([tmp_path / "root.pem"]))


@pytest.mark.parametrize("expired", ["signer", "issuer", "root", "future"])
def test_certificate_valid_today(folder: Path, keys: tuple[Path, Path], tmp_path: Path, expired: str) -> None:
    """All certificates of a chain are valid today, although they were valid together on the signer's first day."""
    past = (-20, -1)
    root = Authority(days=past if expired == "root" else (-60, 60))
    issuer = Authority("issuer", root, days=past if expired == "issuer" else (-60, 60))
    days = {"signer": past, "future": (1, 30)}.get(expired, (-10, 30))
    leaf = issuer.issue(keys[1], tmp_path / "leaf.pem", days=days)
    signed(folder, keys[0], certificate=leaf, chain=[issuer.write(tmp_path / "issuer.pem")])
    with pytest.raises(CheckFailedError, match="cert is not valid at validation time"):
        check_signature(folder, trust_from_files([root.write(tmp_path / "root.pem")]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"usage": None}, r"2\.5\.29\.15: Certificate is missing required extension"),
        ({"usage": key_usage(signs_certificates=True)}, "not for digitalSignature"),
        ({"purpose": None}, r"2\.5\.29\.37: Certificate is missing required extension"),
        ({"purpose": ExtendedKeyUsageOID.SERVER_AUTH}, "not for codeSigning"),
    ],
    ids=["no-usage", "other-usage", "no-purpose", "other-purpose"],
)
def test_certificate_for_both_usages(
    folder: Path, keys: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    root = Authority()
    signed(folder, keys[0], certificate=root.issue(keys[1], tmp_path / "leaf.pem", **changes))
    with pytest.raises(CheckFailedError, match=message):
        check_signature(folder, trust_from_files([root.write(tmp_path / "root.pem")]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"purpose": ExtendedKeyUsageOID.CODE_SIGNING}, None),
        ({"purpose": ExtendedKeyUsageOID.SERVER_AUTH}, "not for codeSigning"),
        ({"usage": key_usage()}, "not for keyCertSign"),
        ({"is_authority": False}, "must be asserted in a CA certificate"),
    ],
    ids=["code", "servers", "signing", "no-authority"],
)
def test_issuer_may_issue_certificates_for_code_signing(
    folder: Path, keys: tuple[Path, Path], tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    root = Authority()
    issuer = Authority("issuer", root, **changes)
    certificate = issuer.issue(keys[1], tmp_path / "signer.crt")
    signed(folder, keys[0], certificate=certificate, chain=[issuer.write(tmp_path / "issuer.crt")])
    trust = trust_from_files([root.write(tmp_path / "root.crt")])
    if message is None:
        assert len(check_signature(folder, trust).digests) == 3
    else:
        with pytest.raises(CheckFailedError, match=message):
            check_signature(folder, trust)


def test_bad_keys_are_refused_by_name(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    text = tmp_path / "text.pem"
    text.write_text("no key")
    locked, _ = write_keys(tmp_path, "locked", password="secret")
    assert signer_from_files(locked, b"secret").key
    for path, password in ((text, None), (public, None), (locked, None), (locked, b"wrong"), (tmp_path / "none", None)):
        with pytest.raises(BadInputError, match="a private elliptic curve key"):
            signer_from_files(path, password)
    for wrong in ([text], [private], [], [tmp_path / "none"]):
        with pytest.raises(BadInputError, match="public keys or root certificates"):
            trust_from_files(wrong)
    _, other = write_keys(tmp_path, "other")
    certificate = Authority().issue(other, tmp_path / "leaf.pem")
    with pytest.raises(BadInputError, match="belongs to another key"):
        signer_from_files(private, None, certificate)
    with pytest.raises(BadInputError, match="certificates in PEM"):
        signer_from_files(private, None, text)


def test_a_statement_that_contradicts_itself_is_refused() -> None:
    text = statement_from_digests("f", {"a": "0" * 64, "b": "1" * 64}, SIGNATURE_NAME)
    assert digests_from_statement(text, source="s") == {"a": "0" * 64, "b": "1" * 64}
    statement = json.loads(text)
    resources = statement["predicate"]["resources"]
    for changed in ([*resources, resources[1]], resources[:1]):
        statement["predicate"]["resources"] = changed
        with pytest.raises(BadInputError, match="s contradicts itself"):
            digests_from_statement(json.dumps(statement).encode(), source="s")


def test_a_certificate_of_an_unknown_version_is_refused(folder: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    root = Authority()
    trust = trust_from_files([root.write(tmp_path / "root.crt")])
    signed(folder, keys[0], certificate=root.issue(keys[1], tmp_path / "signer.crt"))
    path = folder / SIGNATURE_NAME
    content = json.loads(path.read_bytes())
    chain = content["verificationMaterial"]["x509CertificateChain"]["certificates"]
    der = base64.b64decode(chain[0]["rawBytes"])
    chain[0]["rawBytes"] = base64.b64encode(der.replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x07")).decode()
    path.write_text(json.dumps(content))
    with pytest.raises(CheckFailedError, match="7 is not a valid X509 version"):
        check_signature(folder, trust)


UNKNOWN_CURVE = """-----BEGIN PUBLIC KEY-----
MEAwEAYHKoZIzj0CAQYFK4EEAAEDLAAEBqsgeaWb732iQN8WxBYNHjRAeG2SB9fg
blPVboXsvuNwQam/izJAHLzV
-----END PUBLIC KEY-----
"""
"""A key on the curve sect163k1, which the library cryptography has no more (46 still had it)."""


def test_other_curves_are_refused(folder: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "other", ec.SECP256K1())  # as large as P-256
    with pytest.raises(BadInputError, match="a key of another kind"):
        signed(folder, private)
    with pytest.raises(BadInputError, match="a key of another kind"):
        trust_from_files([public])
    public.write_text(UNKNOWN_CURVE)
    with pytest.raises(BadInputError, match=r"not supported|a key of another kind"):
        trust_from_files([public])


@pytest.mark.parametrize("name", [".gitattributes", ".github/run.py", os.fsdecode(b"\xff")])
def test_files_that_a_signature_cannot_list_are_not_signed(folder: Path, keys: tuple[Path, Path], name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).touch()
    with pytest.raises(BadInputError, match="cannot list"):
        signed(folder, keys[0])
    assert not (folder / SIGNATURE_NAME).exists()


def test_name_of_the_folder_may_be_no_unicode(folder: Path, keys: tuple[Path, Path]) -> None:
    folder = folder.rename(folder.with_name(os.fsdecode(b"f\xff")))
    assert len(check_signature(signed(folder, keys[0]), trust_from_files([keys[1]])).digests) == 3


def test_names_in_errors_are_printable(folder: Path, keys: tuple[Path, Path]) -> None:
    signed(folder, keys[0])
    (folder / "a\x1b[31m\n").touch()
    with pytest.raises(CheckFailedError) as refused:
        check_signature(folder, trust_from_files([keys[1]]))
    assert r"added: 'a\x1b[31m\n'" in refused.value.received
