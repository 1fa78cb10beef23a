"""Source files of a bundle: digests, missing files, missing or unnecessary adapters."""

import shutil
from pathlib import Path

import pytest

from lopa.export.verify.origin import check_origin
from lopa.runtime.bundle import Bundle
from lopa.runtime.bundle.manifest import Origin
from lopa.runtime.errors import BadInputError, CheckFailedError
from lopa.tiny import ADAPTER, CHECKPOINT


@pytest.fixture
def origin(tiny_bundle: Path) -> Origin:
    return Bundle.open(tiny_bundle).manifest.origin


def with_one_bit_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_files_of_the_export_are_accepted(origin: Origin) -> None:
    check_origin(origin, CHECKPOINT, ADAPTER)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_another_checkpoint_is_named(origin: Origin, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "base"
    shutil.copytree(CHECKPOINT, copy)
    with_one_bit_changed(copy / name)
    with pytest.raises(CheckFailedError, match="made from other files: ") as caught:
        check_origin(origin, copy, ADAPTER)
    assert caught.value.received.endswith(f"{copy / name} has another SHA-256")
    assert caught.value.received.count("SHA-256") == 1


def test_another_adapter_is_named(origin: Origin, tmp_path: Path) -> None:
    copy = tmp_path / "lora"
    shutil.copytree(ADAPTER, copy)
    with_one_bit_changed(copy / "adapter_model.safetensors")
    (copy / "adapter_config.json").unlink()
    with pytest.raises(CheckFailedError) as caught:
        check_origin(origin, CHECKPOINT, copy)
    assert "adapter_model.safetensors has another SHA-256" in caught.value.received
    assert "adapter_config.json does not exist" in caught.value.received


def test_an_adapter_of_a_bundle_without_one_is_rejected(origin: Origin) -> None:
    without = Origin(checkpoint=origin.checkpoint, adapter={}, tools={})
    check_origin(without, CHECKPOINT, None)
    with pytest.raises(CheckFailedError, match="names no weights files"):
        check_origin(without, CHECKPOINT, ADAPTER)


def test_a_missing_adapter_is_bad_usage(origin: Origin) -> None:
    with pytest.raises(BadInputError, match="add --lora DIR"):
        check_origin(origin, CHECKPOINT, None)


def test_a_missing_folder_is_bad_usage(origin: Origin, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="is not a folder"):
        check_origin(origin, tmp_path / "absent", ADAPTER)


def test_a_manifest_without_weights_or_with_paths_is_rejected(origin: Origin) -> None:
    digest = origin.checkpoint["model.safetensors"]
    for checkpoint, message in (
        ({}, "names no weights"),
        ({"../base/model.safetensors": digest}, "is not a file name"),
    ):
        with pytest.raises(CheckFailedError, match=message):
            check_origin(Origin(checkpoint=checkpoint, adapter=origin.adapter, tools={}), CHECKPOINT, ADAPTER)
