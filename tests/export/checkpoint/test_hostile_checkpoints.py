"""Maliciously changed checkpoints: each quickly gives one error with a remedy, and leaves no files."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.export.checkpoint.slow_tokenizer import CONFIG_IDS, slow_tokenizer
from tests.export.checkpoints import edit_config, shard, small_checkpoint

from lopa.cli.main import main
from lopa.export.checkpoint import module_patterns
from lopa.export.checkpoint.lora import adapter_from_folder
from lopa.export.checkpoint.module_patterns import first_matches
from lopa.export.checkpoint.tensors import INDEX_NAME, SINGLE_NAME, CheckpointTensor
from lopa.export.families.dream import DREAM
from lopa.export.source import source_from_checkpoint
from lopa.runtime.bundle.network import network_from_dimensions
from lopa.runtime.errors import BadInputError
from lopa.tiny import ADAPTER, CHECKPOINT

DEEP = [
    '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"a": ' + '{"a":' * 900 + "1" + "}" * 901,
    '{"a": "\\ud800"}',
    '{"a": NaN}',
    '{"a": 1' + "0" * 5000 + "}",
    b'{"a": "\xff"}',
    b"\x00",
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return small_checkpoint(tmp_path / "checkpoint")


def _write(path: Path, text: str | bytes) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("text", DEEP, ids=range(len(DEEP)))
def test_json_that_cannot_be_read(checkpoint: Path, text: str | bytes) -> None:
    _write(checkpoint / "config.json", text)
    with pytest.raises(BadInputError, match=r"config\.json"):
        source_from_checkpoint(checkpoint, None)


FILES = [INDEX_NAME, "tokenizer_config.json", "tokenizer.json", SINGLE_NAME, "vocab.json", "merges.txt"]
FILES += ["added_tokens.json", "special_tokens_map.json", "adapter_config.json"]


@pytest.mark.parametrize("text", [DEEP[0], DEEP[2]], ids=["nested", "surrogate"])
@pytest.mark.parametrize("name", FILES)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, text: str | bytes) -> None:
    lora = _adapter(tmp_path) if name == "adapter_config.json" else None
    is_slow = name in FILES[4:8]
    checkpoint = small_checkpoint(tmp_path / "checkpoint", changes=CONFIG_IDS if is_slow else {})
    if is_slow:
        slow_tokenizer(checkpoint)
    if name == "special_tokens_map.json":  # it is read only without added_tokens_decoder
        (checkpoint / "tokenizer_config.json").write_text('{"tokenizer_class": "DreamTokenizer"}')
    content = text if isinstance(text, bytes) else text.encode()
    if name == SINGLE_NAME:
        content = len(content).to_bytes(8, "little") + content
    _write((checkpoint if lora is None else lora) / name, content)
    with pytest.raises(BadInputError, match=re.escape(name)):
        source_from_checkpoint(checkpoint, lora)


def test_a_mask_that_is_the_end_of_text(checkpoint: Path) -> None:
    edit_config(checkpoint, eos_token_id=2)
    with pytest.raises(BadInputError, match="mask"):
        source_from_checkpoint(checkpoint, None)


@pytest.mark.parametrize("layers", [4097, 2**31 - 1])
def test_layers_are_limited_before_they_are_planned(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, layers: int
) -> None:
    edit_config(checkpoint, num_hidden_layers=layers)
    monkeypatch.setattr(network_from_dimensions, "__code__", (lambda dimensions: 1 / 0).__code__)  # noqa: ARG005
    with pytest.raises(BadInputError, match=f"num_hidden_layers = {layers}"):
        source_from_checkpoint(checkpoint, None)


@pytest.mark.parametrize(
    "shard_name",
    ["..", "", "a/b", "../other", "/etc/passwd", "a\0b", "a\ud800", "loop", "fifo", "folder", "n" * 300, "n" * 6000],
    ids=lambda name: repr(name[:12]),
)
def test_shards_that_an_index_may_not_name(checkpoint: Path, shard_name: str) -> None:
    (checkpoint / "loop").symlink_to("loop")
    os.mkfifo(checkpoint / "fifo")
    (checkpoint / "folder").mkdir()
    (checkpoint / INDEX_NAME).write_text(json.dumps({"weight_map": {"lm_head.weight": shard_name}}))
    with pytest.raises(BadInputError):
        source_from_checkpoint(checkpoint, None)


@pytest.mark.parametrize("kind", ["loop", "fifo", "folder"])
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", SINGLE_NAME, INDEX_NAME])
def test_paths_that_are_not_files(checkpoint: Path, name: str, kind: str) -> None:
    """Check that a FIFO does not block, and that an optional file of another kind counts as absent."""
    if name == INDEX_NAME:
        shard(checkpoint)
    path = checkpoint / name
    path.unlink()
    if kind == "loop":
        path.symlink_to(name)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()
    if name == "tokenizer_config.json":
        source_from_checkpoint(checkpoint, None)
        return
    with pytest.raises(BadInputError):
        source_from_checkpoint(checkpoint, None)


@pytest.fixture(scope="module")
def base() -> dict[str, CheckpointTensor]:
    return source_from_checkpoint(CHECKPOINT, None).stored


def _adapter(folder: Path, **changes: Any) -> Path:
    """Write the tiny model's adapter with another configuration. Return its folder."""
    config = json.loads((ADAPTER / "adapter_config.json").read_bytes())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **changes}))
    (folder / "adapter_model.safetensors").symlink_to(ADAPTER / "adapter_model.safetensors")
    return folder


@pytest.mark.parametrize(
    "change",
    [
        {"layers_to_transform": True},
        {"layers_to_transform": [[0]]},
        {"modules_to_save": [None]},
        {"modules_to_save": "lm_head"},
        {"modules_to_save": ["lm_head"] * 2000},
        {"rank_pattern": 7},
        {"rank_pattern": {"q_proj": "4"}},
        {"rank_pattern": {"(": 32}},
        {"rank_pattern": {f"pattern{i}": 32 for i in range(20_000)}},
        {"alpha_pattern": {"q_proj": 10**400}},
        {"alpha_pattern": {"q_proj": 0}},
        {"alpha_pattern": {".*" * 900 + f"x{i}": 1 for i in range(20)}},
        {"r": 0},
        {"r": True},
        {"r": 2**63},
        {"lora_alpha": 10**400},
        {"lora_alpha": 1e-300},
        {"lora_alpha": "64"},
        {"target_modules": [7]},
        {"target_modules": "(" * 900 + ")" * 900},
        {"target_modules": "x" * 100_000},
        {"target_modules": "((a*)*)*b"},
        {"exclude_modules": 7},
        {"use_rslora": "yes"},
    ],
    ids=lambda change: str(change)[:50],
)
def test_an_adapter_s_configuration_has_types_and_ranges(
    tmp_path: Path, base: dict[str, CheckpointTensor], change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_patterns, "_MAX_SECONDS", 0.5)
    with pytest.raises(BadInputError, match="adapter_config"):
        adapter_from_folder(_adapter(tmp_path, **change), base, DREAM.architecture, tied=False)


@pytest.mark.parametrize(
    "pattern", [r"((\w|\.)*)*!", "(?:(?:a?){9999}){9999}b", ".*" * 900 + "x", "(" * 9000, "(", "a**"], ids=range(6)
)
def test_patterns_that_take_too_long_or_are_none(monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr(module_patterns, "_MAX_SECONDS", 0.5)
    began = time.monotonic()
    with pytest.raises(BadInputError, match=r"adapter\.json has (the )?pattern"):
        first_matches([pattern], ["a" * 60], source="adapter.json")
    assert time.monotonic() - began < 10


def test_the_first_pattern_that_matches_the_whole_name() -> None:
    patterns = [r".*\.mlp\.(up|down)_proj", r"(?!.*layers\.1).*q_proj", r".*q_proj", ""]
    names = ["model.layers.3.mlp.up_proj", "model.layers.12.self_attn.q_proj", "q_proj", "q_projection", ""]
    assert first_matches(patterns, names, source="a file") == [0, 2, 1, None, 3]
    assert first_matches([], names, source="a file") == [None] * 5


@pytest.mark.parametrize("name", ["n" * 300, "loop", "config/below"])
def test_destinations_that_cannot_be_made(checkpoint: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (checkpoint / "loop").symlink_to("loop")
    (checkpoint / "config").write_text("a file")
    before = sorted(checkpoint.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["onnx", str(checkpoint), "-o", str(checkpoint / name)])
    assert ended.value.code == 2
    assert "what to do" in capsys.readouterr().err
    assert sorted(checkpoint.iterdir()) == before
