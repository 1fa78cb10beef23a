"""Errors on opening incomplete, foreign or unsafe bundles."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import MANIFEST_NAME
from lopa.runtime.bundle.manifest_checks import manifest_from_json
from lopa.runtime.bundle.record import json_from_record
from lopa.runtime.errors import BadInputError


def edit(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = bundle / MANIFEST_NAME
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_complete_bundle_opens(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    assert bundle.altered_files() == []
    assert bundle.graph.is_file()
    assert bundle.weights.stat().st_size >= sum(tensor.length for tensor in bundle.manifest.tensors.values())
    text = json_from_record(bundle.manifest)
    assert manifest_from_json(text, source="again") == bundle.manifest
    assert text == (tiny_bundle / MANIFEST_NAME).read_bytes()


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "received", "expected"),
    [
        (_set("schema", to=1), "schema version 1", "schema version 3"),
        (_set("contract", to=9), "contract version 9", "contract version 1"),
        (_set("dtype", to="float8"), "float8", "fields of schema"),
        (_set("colour", to="red"), "colour", "fields of schema"),
        (_set("dimensions", "layers", to="five"), "layers", "fields of schema"),
        (lambda manifest: manifest.pop("special_tokens"), "special_tokens", "fields of schema"),
        (_set("portable_graph", to="other.onnx"), "other.onnx", "among the files"),
    ],
)
def test_foreign_manifest_raises(
    copy: Path, change: Callable[[dict[str, Any]], None], received: str, expected: str
) -> None:
    edit(copy, change)
    with pytest.raises(BadInputError) as caught:
        Bundle.open(copy)
    assert received in caught.value.received
    assert expected in caught.value.expected


def test_invalid_json_raises(copy: Path) -> None:
    (copy / MANIFEST_NAME).write_text("{")
    with pytest.raises(BadInputError, match="is not a manifest"):
        Bundle.open(copy)


@pytest.mark.parametrize("name", ["model.onnx.data"])
def test_error_names_missing_or_truncated_file(copy: Path, name: str) -> None:
    size = (copy / name).stat().st_size
    (copy / name).write_bytes((copy / name).read_bytes()[:-1])
    with pytest.raises(BadInputError, match=rf"{name} has {size - 1} bytes") as caught:
        Bundle.open(copy)
    assert str(size) in caught.value.expected
    (copy / name).unlink()
    with pytest.raises(BadInputError, match=rf"{name} is missing"):
        Bundle.open(copy)


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret"])
def test_path_outside_the_folder_raises(copy: Path, name: str) -> None:
    (copy.parent / "secret").write_text("x")
    edit(copy, lambda manifest: manifest["files"].append({"path": name, "size": 1, "sha256": "0" * 64}))
    with pytest.raises(BadInputError, match="names the file") as caught:
        Bundle.open(copy)
    assert caught.value.expected == "a relative path inside the bundle"


def test_link_outside_the_folder_raises(copy: Path) -> None:
    outside = copy.parent / "outside.json"
    shutil.move(copy / "tokenizer.json", outside)
    (copy / "tokenizer.json").symlink_to(outside)
    with pytest.raises(BadInputError, match=r"names the file 'tokenizer\.json'"):
        Bundle.open(copy)


@pytest.mark.parametrize("shared", [False, True])
def test_a_snapshot_in_the_hub_s_cache_opens_with_its_links(tiny_bundle: Path, tmp_path: Path, shared: bool) -> None:
    """Make the folder that huggingface_hub.snapshot_download returns, whose files are links to blobs."""
    snapshot, blobs = tmp_path / "models--org--tiny/snapshots/abc", tmp_path / "models--org--tiny/blobs"
    stored = tmp_path / "blobs/ab" if shared else blobs
    for folder in (snapshot, blobs, stored):
        folder.mkdir(parents=True, exist_ok=True)
    for path in tiny_bundle.iterdir():
        shutil.copyfile(path, stored / f"{path.name}-digest")
        if shared:
            (blobs / f"{path.name}-digest").symlink_to(f"../../blobs/ab/{path.name}-digest")
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}-digest")
    bundle = Bundle.open(snapshot)
    assert bundle.altered_files() == []
    assert onnxruntime.InferenceSession(bundle.graph).get_inputs()  # the weights are a link too
    for outside in (tmp_path / "models--org--tiny" / "file", tmp_path / "models--org--other" / "blobs" / "file"):
        outside.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(tiny_bundle / "tokenizer.json", outside)
        (snapshot / "tokenizer.json").unlink()
        (snapshot / "tokenizer.json").symlink_to(outside)
        with pytest.raises(BadInputError, match=r"names the file 'tokenizer\.json'"):
            Bundle.open(snapshot)


def test_blobs_beside_another_folder_are_outside(copy: Path) -> None:
    for name in ("models--org--tiny/other/bundle", "other/snapshots/bundle"):
        folder = copy.parent / name
        shutil.copytree(copy, folder)
        blobs = folder.parents[1] / "blobs"
        blobs.mkdir()
        shutil.move(folder / "tokenizer.json", blobs / "blob")
        (folder / "tokenizer.json").symlink_to("../../blobs/blob")
        with pytest.raises(BadInputError, match=r"names the file 'tokenizer\.json'"):
            Bundle.open(folder)


def test_altered_files_compares_digests(copy: Path) -> None:
    path = copy / "model.onnx.data"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert Bundle.open(copy).altered_files() == ["model.onnx.data"]


def test_folder_without_manifest_raises(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has no manifest\.json"):
        Bundle.open(tmp_path)
    (tmp_path / "file").touch()
    for name, message in (("nothing", "nothing does not exist"), ("file", "file is a file"), ("file/x", "not exist")):
        with pytest.raises(BadInputError, match=message):
            Bundle.open(tmp_path / name)


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path)


def _link_through_a_loop(path: Path) -> None:
    (path.parent / "loop").symlink_to(path.parent / "loop")
    path.symlink_to(path.parent / "loop" / path.name)


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json"])
@pytest.mark.parametrize("put", [_link_to_itself, _link_through_a_loop, Path.mkdir, os.mkfifo, Path.touch])
def test_special_file_raises(copy: Path, name: str, put: Callable[[Path], None]) -> None:
    (copy / name).unlink()
    put(copy / name)
    with pytest.raises(BadInputError):
        Bundle.open(copy)


@pytest.mark.parametrize("name", ["a\0b", "a" * 300, "/".join(["a" * 200] * 5), ".", "\ud800", ""])
def test_invalid_file_name_raises(copy: Path, name: str) -> None:
    edit(copy, lambda manifest: manifest["files"].append({"path": name, "size": 1, "sha256": "0" * 64}))
    with pytest.raises(BadInputError):
        Bundle.open(copy)
