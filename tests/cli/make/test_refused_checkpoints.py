"""Folders that cannot be exported. Each mistake has its own error, reported before torch and ONNX are imported.

All commands run in one process in which importing torch, transformers or ONNX is an unexpected error (exit code 70).
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from tests.export.checkpoints import edit_config, edit_weights, shard, small_checkpoint

from lopa.export.checkpoint.tensors import INDEX_NAME, SINGLE_NAME
from lopa.tiny import ADAPTER, CHECKPOINT

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "transformers", "safetensors", "onnx", "onnx_ir", "onnxscript", "peft"):
            raise AssertionError(f"{name} was imported")

sys.meta_path.insert(0, Refuse())
from tests.cli.command import lopa_export
done = {name: lopa_export(*arguments) for name, arguments in json.load(sys.stdin).items()}
print(json.dumps({name: (each.returncode, each.stderr) for name, each in done.items()}))
"""
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 4976698672\n".format("0123456789abcdef" * 4)

Make = Callable[[Path], Path | str]
"""Function that fills the folder it receives and returns the command's arguments."""


def _small(folder: Path) -> Path:
    return small_checkpoint(folder)


def _with_adapter(folder: Path) -> Path:
    return shutil.copytree(ADAPTER, _small(folder), dirs_exist_ok=True)


def _without(*names: str) -> Make:
    def made(folder: Path) -> Path:
        for name in names:
            (_small(folder) / name).unlink()
        return folder

    return made


def _file(name: str, text: str = "x") -> Make:
    """Make a checkpoint without weights, but with one other file."""

    def made(folder: Path) -> Path:
        _without(SINGLE_NAME)(folder)
        (folder / name).write_text(text)
        return folder

    return made


def _alone(name: str) -> Make:
    def made(folder: Path) -> Path:
        folder.mkdir()
        (folder / name).write_text("x")
        return folder / name

    return made


def _pointers(*names: str) -> Make:
    def made(folder: Path) -> Path:
        _small(folder)
        for name in names:
            (folder / name).write_text(POINTER)
        return folder

    return made


def _config(**changes: object) -> Make:
    def made(folder: Path) -> Path:
        edit_config(_small(folder), **changes)
        return folder

    return made


def _weights(changes: Mapping[str, torch.Tensor | None]) -> Make:
    def made(folder: Path) -> Path:
        edit_weights(_small(folder), changes)
        return folder

    return made


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _without_shards(folder: Path) -> Path:
    for path in shard(_small(folder))[:2]:
        path.unlink()
    return folder


def _without_index(folder: Path) -> Path:
    shard(_small(folder))
    (folder / INDEX_NAME).unlink()
    return folder


def _hub_cache(folder: Path) -> Path:
    for name in ("blobs", "refs"):
        (folder / name).mkdir(parents=True)
    _small(folder / "snapshots" / "0a1b2c")
    return folder


def _bundle(folder: Path) -> Path:
    folder.mkdir()
    for name in ("manifest.json", "model.onnx"):
        (folder / name).write_text("{}")
    return folder


HUB = "hf download ORG/NAME --local-dir DIR"
CHECKPOINTS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "missing folder": (lambda folder: folder, ("missing folder does not exist", HUB)),
    "empty folder": (_empty, ("empty folder is an empty folder", HUB)),
    "hub cache": (_hub_cache, ("has no config.json", "snapshots/0a1b2c")),
    "no config": (_without("config.json"), ("no config has no config.json", HUB)),
    "a bundle": (_bundle, ("is a bundle, not a checkpoint", "exported from")),
    "pointers": (
        _pointers("config.json", "tokenizer.json", SINGLE_NAME),
        ("config.json and 2 more files are Git LFS pointers", "git lfs pull"),
    ),
    "adapter": (lambda _: ADAPTER, ("d2f_lora is a PEFT adapter, not a checkpoint", f"--lora {ADAPTER}")),
    "adapter inside": (
        _with_adapter,
        ("adapter_config.json beside its weights", "a folder of their own, and pass it with --lora"),
    ),
    "gguf file": (_alone("dream-q4.gguf"), ("dream-q4.gguf is a GGUF file", "original checkpoint")),
    "gguf folder": (_file("dream-q4.gguf"), ("has GGUF weights only", "original checkpoint")),
    "one safetensors file": (
        lambda folder: _small(folder) / SINGLE_NAME,
        ("is a single safetensors file", "pass its folder, which has the other files", "one safetensors file"),
    ),
    "another file": (lambda folder: _small(folder) / "config.json", ("is not a folder", "folder that contains it")),
    "pickled": (
        _file("pytorch_model-00001-of-00002.bin"),
        ("has pickled weights only (pytorch_model-00001-of-00002.bin)", "save_pretrained(NEW)"),
    ),
    "no weights": (_without(SINGLE_NAME), ("has neither model.safetensors nor model.safetensors.index.json", "copy")),
    "missing shards": (
        _without_shards,
        ("model-00001-of-00003.safetensors does not exist, nor do 1 more", "all 3 shards", "hf download"),
    ),
    "missing index": (_without_index, ("but no model.safetensors.index.json", "download the index")),
    "setting": (_config(use_sliding_window=True), ("use_sliding_window = True", "not supported")),
    "wrong shape": (
        _weights({"model.norm.weight": torch.zeros(33)}),
        ("model.norm.weight has the shape [33]", "[32], from config.json"),
    ),
    "missing tensor": (_weights({"model.norm.weight": None}), ("has no tensor model.norm.weight", "config.json")),
    "no tokenizer": (_without("tokenizer.json"), ("has no tokenizer.json", "copy the tokenizer's files")),
}
ADAPTERS: dict[str, tuple[Make, tuple[str, ...]]] = {
    "lora: missing": (lambda folder: folder, ("does not exist", "check the path")),
    "lora: empty": (_empty, ("is an empty folder", "adapter_config.json and adapter_model.safetensors")),
    "lora: checkpoint": (_small, ("is a checkpoint, not an adapter", "pass it as the checkpoint")),
    "lora: pickled": (
        lambda folder: _alone("adapter_config.json")(folder) and folder,
        ("has no adapter_model.safetensors", "safe_serialization=True"),
    ),
    "lora: other base": (lambda _: ADAPTER, ("d2f_lora", "use the adapter that was trained on this checkpoint")),
}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory, tiny_bundle: Path) -> dict[str, tuple[int, str]]:
    """Return exit code and standard error of every command, by name."""
    place = tmp_path_factory.mktemp("refused")
    base = _small(place / "base")
    output = place / "out" / "bundle"
    commands: dict[str, list[object]] = {
        name: ["onnx", make(place / name), "-o", output] for name, (make, _) in CHECKPOINTS.items()
    }
    for name, (make, _) in ADAPTERS.items():
        commands[name] = ["onnx", base, "-o", output, "--lora", make(place / name)]
    for name in VERIFIED:
        given = commands[name]
        commands[f"verify: {name}"] = (
            ["verify", tiny_bundle, "--checkpoint", CHECKPOINT, "--lora", given[-1]]
            if name in ADAPTERS
            else ["verify", tiny_bundle, "--checkpoint", given[1], "--lora", ADAPTER]
        )
    (place / "file").write_text("x")
    commands["options: stages"] = ["onnx", base, "-o", output, "--stages", 3]
    commands["options: quantize"] = ["onnx", base, "-o", output, "--quantize", "int8", "--quantize-exclude", "no.such"]
    commands["options: default"] = ["onnx", base, "-o", output, "--default", "max_new_tokens=600"]
    commands["options: template"] = ["onnx", base, "-o", output, "--chat-template", place / "file"]
    commands["options: destination"] = ["onnx", base, "-o", place / "file"]
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(commands, default=str),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))},
        cwd=shutil.copytree(place / "lora: empty", place / "elsewhere"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not output.parent.exists()
    found: dict[str, tuple[int, str]] = json.loads(ended.stdout)
    return found


VERIFIED = ("empty folder", "pointers", "adapter", "adapter inside", "gguf file", "pickled", "lora: checkpoint")
"""Mistakes that `verify --checkpoint` reports in the same words."""


@pytest.mark.parametrize("name", [*CHECKPOINTS, *ADAPTERS])
def test_each_mistake_is_rejected_before_torch_is_imported(refusals: Mapping[str, tuple[int, str]], name: str) -> None:
    _check(refusals[name], {**CHECKPOINTS, **ADAPTERS}[name][1])


@pytest.mark.parametrize("name", VERIFIED)
def test_verify_reports_the_same_errors(refusals: Mapping[str, tuple[int, str]], name: str) -> None:
    _check(refusals[f"verify: {name}"], {**CHECKPOINTS, **ADAPTERS}[name][1])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("stages", "3 stages for a checkpoint of 2 layers"),
        ("quantize", "'no.such' matches no tensor"),
        ("default", "max_new_tokens 600 by default"),
        ("template", "as 'x'"),
        ("destination", "file exists"),
    ],
)
def test_conflicting_options_are_rejected_before_torch_is_imported(
    refusals: Mapping[str, tuple[int, str]], name: str, sentence: str
) -> None:
    _check(refusals[f"options: {name}"], (sentence,))


def test_every_error_has_its_own_text(refusals: Mapping[str, tuple[int, str]]) -> None:
    message = [refusals[name][1].split("error: ")[1].split("\n")[0] for name in CHECKPOINTS]
    assert len(set(message)) == len(message)


def _check(refusal: tuple[int, str], sentences: tuple[str, ...]) -> None:
    code, errors = refusal
    assert code == 2, errors
    assert "expected: " in errors
    assert "what to do: " in errors
    for sentence in sentences:
        assert sentence in errors
