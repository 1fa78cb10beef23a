"""lopa-export sign, verify --signature, serve --require-signature and Python's trusted_keys, on a real bundle."""

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
from tests.cli.command import lopa_export
from tests.runtime.signature.certificates import Authority, write_keys

from lopa.runtime import Decoder
from lopa.runtime.engine import Engine
from lopa.runtime.errors import CheckFailedError


@pytest.fixture
def bundle(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def test_a_signed_bundle_opens_and_an_edited_one_does_not(bundle: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "signer")
    done = lopa_export("sign", bundle, "--key", private)
    assert (done.returncode, "files signed" in done.stdout) == (0, True), done.stderr
    checked = lopa_export("verify", bundle, "--signature", "--trusted-key", public)
    assert (checked.returncode, "as signed by a trusted key" in checked.stdout) == (0, True), checked.stderr
    with Decoder.open(bundle, threads=1, trusted_keys=[public]) as decoder:
        assert decoder.generate("1 + 1", max_new_tokens=4).tokens
    assert lopa_export("edit", bundle, "--default", "branches=2").returncode == 0
    refused = lopa_export("verify", bundle, "--signature", "--trusted-key", public)
    assert refused.returncode == 1
    assert "changed: manifest.json" in refused.stderr
    assert "sign it again" in refused.stderr
    for opened in (Decoder, Engine):
        with pytest.raises(CheckFailedError, match=r"changed: manifest\.json"):
            opened.open(bundle, threads=1, trusted_keys=[str(public)])
    served = lopa_export("serve", bundle, "--port", 0, "--require-signature", public)
    assert (served.returncode, "changed: manifest.json" in served.stderr) == (1, True)
    assert lopa_export("sign", bundle, "--key", private).returncode == 0
    assert lopa_export("verify", bundle, "--signature", "--trusted-key", public).returncode == 0


def test_an_unsigned_bundle_and_another_key_are_refused(bundle: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "signer")
    _, other = write_keys(tmp_path, "other")
    served = lopa_export("serve", bundle, "--port", 0, "--require-signature", public)
    assert (served.returncode, "is not signed" in served.stderr) == (1, True)
    assert lopa_export("sign", bundle, "--key", private).returncode == 0
    with pytest.raises(CheckFailedError, match="another key"):
        Decoder.open(bundle, threads=1, trusted_keys=[other])


def test_certificates_and_encrypted_keys(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private, public = write_keys(tmp_path, "signer", password="a secret")
    authority = Authority()
    root, leaf = authority.write(tmp_path / "root.pem"), authority.issue(public, tmp_path / "leaf.pem")
    monkeypatch.delenv("LOPA_SIGNING_PASSWORD", raising=False)
    asked = lopa_export("sign", bundle, "--key", private)
    assert (asked.returncode, "LOPA_SIGNING_PASSWORD" in asked.stderr) == (2, True)
    monkeypatch.setenv("LOPA_SIGNING_PASSWORD", "wrong")
    assert lopa_export("sign", bundle, "--key", private).returncode == 2
    assert not (bundle / "model.sig").exists()
    monkeypatch.setenv("LOPA_SIGNING_PASSWORD", "a secret")
    assert lopa_export("sign", bundle, "--key", private, "--certificate", leaf).returncode == 0
    assert lopa_export("verify", bundle, "--signature", "--trusted-key", root).returncode == 0


def test_bad_use_is_refused(bundle: Path, tmp_path: Path) -> None:
    private, public = write_keys(tmp_path, "signer")
    for arguments in (
        ("sign", bundle, "--key", public),
        ("sign", bundle, "--key", private, "--chain", public),
        ("sign", tmp_path / "missing", "--key", private),
        ("sign", bundle, "--key", private, "--certificate", public),
        ("verify", bundle, "--signature"),
        ("verify", bundle, "--trusted-key", public),
        ("verify", bundle, "--signature", "--trusted-key", private),
    ):
        assert lopa_export(*arguments).returncode == 2, arguments
    assert not (bundle / "model.sig").exists()
    if os.geteuid():
        bundle.chmod(0o500)
        assert lopa_export("sign", bundle, "--key", private).returncode == 2
        bundle.chmod(0o700)


def test_a_bundle_that_differs_from_its_manifest_is_not_signed(bundle: Path, tmp_path: Path) -> None:
    private, _ = write_keys(tmp_path, "signer")
    with (bundle / "model.onnx.data").open("r+b") as file:
        file.write(b"x")
    done = lopa_export("sign", bundle, "--key", private)
    assert (done.returncode, "model.onnx.data" in done.stderr) == (1, True), done.stderr
    assert not (bundle / "model.sig").exists()
