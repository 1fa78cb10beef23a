"""Digests of downloaded files in the cache, where a file of huggingface_hub is a link to a blob, or to a shared one."""

import hashlib
from pathlib import Path

import pytest

from lopa.runtime.errors import BadInputError
from lopa.runtime.hub.hub_id import HubId
from lopa.runtime.hub.snapshot import _check_digests

HUB_ID = HubId("org/name")


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_compared_with_the_digest_that_names_its_blob(tmp_path: Path, shared: bool) -> None:
    digest = hashlib.sha256(b"content").hexdigest()
    blob, pointer = tmp_path / "models/blobs" / digest, tmp_path / "models/snapshots/commit/file.bin"
    stored = tmp_path / "blobs/ab" / ("ab" * 32) if shared else blob
    for path in (blob, pointer, stored):
        path.parent.mkdir(parents=True, exist_ok=True)
    stored.write_bytes(b"content")
    if shared:
        blob.symlink_to(f"../../blobs/ab/{stored.name}")
    pointer.symlink_to(f"../../blobs/{digest}")
    _check_digests(HUB_ID, pointer.parent, ["file.bin"])
    stored.write_bytes(b"another")
    with pytest.raises(BadInputError, match=f"another digest than the Hub states\n  expected: the digest {digest}"):
        _check_digests(HUB_ID, pointer.parent, ["file.bin"])
    assert not any(path.is_symlink() or path.exists() for path in (blob, pointer, stored))


def test_a_file_without_links_has_no_stated_digest(tmp_path: Path) -> None:
    name = "0" * 64
    (tmp_path / name).write_bytes(b"content")
    _check_digests(HUB_ID, tmp_path, [name])
