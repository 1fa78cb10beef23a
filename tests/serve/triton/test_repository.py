"""Command lopa-export triton: written files, and rejected input that leaves nothing behind."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.command import lopa_export
from tests.serve.triton.config_reader import config_of_text

from lopa.runtime.bundle import Bundle
from lopa.runtime.errors import BadInputError
from lopa.serve.triton import model_file
from lopa.serve.triton.config_text import config_text
from lopa.serve.triton.groups import InstanceGroup, devices_for_instance, groups_from_devices


def tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_repository_has_config_model_and_bundle(
    tiny_bundle: Path, write_model: Callable[..., Path], tmp_path: Path
) -> None:
    source = Path(shutil.copytree(tiny_bundle, tmp_path / "source"))
    (source / "engines" / "tensorrt-sm89").mkdir(parents=True)
    (source / "engines" / "tensorrt-sm89" / "engine.decoder.params").write_bytes(b"what a builder made")
    folder = write_model(source, tmp_path / "new" / "models", "--model", "tiny")
    assert folder == tmp_path / "new" / "models" / "tiny"
    assert names(folder) == ["1", "config.pbtxt"]
    assert (folder / "1" / "model.py").read_bytes() == Path(model_file.__file__).read_bytes()
    assert tree(folder / "1" / "bundle") == tree(source)
    assert Bundle.open(folder / "1" / "bundle").manifest == Bundle.open(source).manifest
    assert names(tmp_path / "new" / "models") == ["tiny"], "nothing else is left"


def test_a_device_with_a_suffix_keeps_it() -> None:
    """Groups of GPUs have numbers only."""
    first, other = groups_from_devices(["cuda", "cuda:1:tf32"], 1)
    assert (first.kind, first.devices, first.gpus) == ("KIND_GPU", "cuda", (0,))
    assert (other.kind, other.devices, other.gpus) == ("KIND_MODEL", "cuda:1:tf32", ())
    with pytest.raises(BadInputError, match="--device cuda twice"):
        groups_from_devices(["cuda", "cuda:0"], 1)


def test_command_options_are_in_the_config(tiny_bundle: Path, write_model: Callable[..., Path], tmp_path: Path) -> None:
    options = (
        "--link --model m --max-num-seqs 3 --queue 0 --threads 2 --max-tokens 9 --max-branches 4 --max-seconds 1.5"
    )
    devices = "--device cuda:1 --device cpu:0-3 --device cuda:0 --device ascend:0,ascend:1 --instances 2"
    folder = write_model(
        tiny_bundle, tmp_path / "models", *options.split(), *devices.split(), "--python-path", "/a:/b c"
    )
    config = config_of_text((folder / "config.pbtxt").read_text())
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("m", "python", 0)
    assert config["instance_group"] == [
        {"name": "cuda", "kind": "KIND_GPU", "count": 2, "gpus": [1, 0]},
        {"name": "cpu_0_3", "kind": "KIND_CPU", "count": 2},
        {"name": "ascend_0_ascend_1", "kind": "KIND_MODEL", "count": 2},
    ]
    assert {name: each["string_value"] for name, each in config["parameters"].items()} == {
        "device.cuda": "cuda",
        "device.cpu_0_3": "cpu:0-3",
        "device.ascend_0_ascend_1": "ascend:0,ascend:1",
        "bundle": str(tiny_bundle.resolve()),
        "max_num_seqs": "3",
        "queue_limit": "0",
        "threads": "2",
        "max_tokens": "9",
        "max_branches": "4",
        "max_seconds": "1.5",
        "python_path": "/a:/b c",
    }
    assert not (folder / "1" / "bundle").exists()


def test_several_models_share_a_repository(tiny_bundle: Path, write_model: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "models" / "other" / "3").mkdir(parents=True)  # a model of another backend, without a configuration
    for name in ("first", "second"):
        write_model(tiny_bundle, tmp_path / "models", "--link", "--model", name)
    assert names(tmp_path / "models") == ["first", "other", "second"]
    refused = lopa_export("triton", tiny_bundle, "-o", tmp_path / "models", "--model", "first")
    assert refused.returncode == 2
    assert "already contains a model 'first'" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{bundle}", "-o", "{full}"], "contains 'notes.txt', which is not a Triton model"),
        (["{nothing}", "-o", "{new}"], "does not exist"),
        (["{bundle}", "-o", "{bundle}/models"], "is inside the bundle"),
        (["{bundle}", "-o", "{new}", "--model", "a/b"], "model name 'a/b'"),
        (["{bundle}", "-o", "{new}", "--device", "cpu", "--device", "cpu"], "--device cpu twice"),
        (["{bundle}", "-o", "{new}", "--device", "mpi"], "devices mpi span"),
    ],
)
def test_bad_input_is_reported_and_nothing_is_left(
    tiny_bundle: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("")
    bundle = Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))
    places = {"bundle": bundle, "full": tmp_path / "full", "new": tmp_path / "new", "nothing": tmp_path / "none"}
    before = tree(tmp_path)
    refused = lopa_export("triton", *(each.format(**places) for each in arguments))
    assert refused.returncode == 2
    assert words in refused.stderr
    assert refused.stderr.count("\n") == 3, "received, expected, what to do"
    assert tree(tmp_path) == before


def test_full_disk_leaves_nothing(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    refused = lopa_export("triton", tiny_bundle, "-o", tmp_path / "models")
    assert refused.returncode == 2
    assert "No space left on device" in refused.stderr
    assert tree(tmp_path) == []


def test_strings_are_escaped() -> None:
    odd = 'a "quoted" back\\slash\nline\ttab \x01 ü'
    text = config_text("m", [InstanceGroup("cpu", "KIND_CPU", "cpu", (), 1)], {"bundle": odd})
    assert config_of_text(text)["parameters"]["bundle"]["string_value"] == odd
    assert text.isprintable() or set(text) - {"\n", "ü"} <= set(map(chr, range(32, 127)))


def test_instance_finds_its_devices() -> None:
    groups = groups_from_devices(["cpu", "cpu:0", "cuda:0", "cuda:3", "tensorrt-rtx:1"], 2)
    assert [(each.name, each.gpus) for each in groups] == [
        ("cpu", ()),
        ("cpu_0", ()),
        ("cuda", (0, 3)),
        ("tensorrt_rtx", (1,)),
    ]
    kinds = {each.name: each.kind for each in groups}
    devices = {each.name: each.devices for each in groups}
    found = {
        (instance, number): devices_for_instance(instance, number, kinds, devices)
        for instance, number in (("cpu_0", 0), ("cpu_0_1", 0), ("cuda_1", 3), ("tensorrt_rtx_0", 1))
    }
    assert list(found.values()) == [("cpu",), ("cpu:0",), ("cuda:3",), ("tensorrt-rtx:1",)]
    with pytest.raises(BadInputError, match="whose devices no parameter names"):
        devices_for_instance("new_0", 0, kinds, devices)
