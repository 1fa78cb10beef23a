import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.export.checkpoints import edit_weights, failed_export, shard, small_checkpoint

from lopa.export.checkpoint.tensors import INDEX_NAME, SINGLE_NAME, tensors_from_checkpoint
from lopa.runtime.errors import BadInputError


def test_shards_give_the_tensors_of_the_single_file(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    expected = load_file(checkpoint / SINGLE_NAME)
    for sharded in (False, True):
        if sharded:
            shard(checkpoint)
        stored = tensors_from_checkpoint(checkpoint)
        assert set(stored) == set(expected)
        for name, tensor in expected.items():
            assert stored[name].shape == tuple(tensor.shape)
            assert torch.equal(stored[name].read(), tensor)


def test_some_rows_of_a_tensor(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    weights = {"matrix": torch.randn(7, 3, 5).bfloat16(), "other": torch.randn(11)}
    save_file(weights, checkpoint / SINGLE_NAME)
    stored = tensors_from_checkpoint(checkpoint)["matrix"]
    rows = torch.empty(3, 3, 5, dtype=stored.dtype)
    for start in (0, 2, 4):
        stored.read_rows(start, rows)
        assert torch.equal(rows, weights["matrix"][start : start + 3])


@pytest.mark.parametrize("change", ["shorter", "gone"])
def test_a_file_that_changes_after_its_header_was_read(tmp_path: Path, change: str) -> None:
    checkpoint = small_checkpoint(tmp_path)
    stored = tensors_from_checkpoint(checkpoint)
    if change == "gone":
        (checkpoint / SINGLE_NAME).unlink()
    else:
        os.truncate(checkpoint / SINGLE_NAME, 100)
    with pytest.raises(BadInputError, match=r"cannot be read for lm_head\.weight"):
        stored["lm_head.weight"].read()


def test_a_missing_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    missing = shard(checkpoint)[1]
    missing.unlink()
    assert f"{missing} does not exist" in failed_export(capsys, checkpoint)


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_a_truncated_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: int) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    last = shard(checkpoint)[-1]
    last.write_bytes(last.read_bytes()[:kept])
    assert f"{last} is truncated" in failed_export(capsys, checkpoint)


def test_an_index_that_names_a_missing_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    shards = shard(checkpoint)
    index = json.loads((checkpoint / INDEX_NAME).read_text())
    index["weight_map"]["model.norm.weight"] = next(
        path.name for path in shards if path.name != index["weight_map"]["model.norm.weight"]
    )
    (checkpoint / INDEX_NAME).write_text(json.dumps(index))
    assert "places 'model.norm.weight' in" in failed_export(capsys, checkpoint)


@pytest.mark.parametrize("place", ["../other.safetensors", "/etc/other.safetensors"])
def test_an_index_that_leaves_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    (checkpoint / INDEX_NAME).write_text(json.dumps({"weight_map": {"lm_head.weight": place}}))
    assert repr(place) in failed_export(capsys, checkpoint)


@pytest.mark.parametrize("index", [{}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str], index: object) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    (checkpoint / INDEX_NAME).write_text(json.dumps(index))
    assert "no weight_map" in failed_export(capsys, checkpoint)


def test_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    (checkpoint / SINGLE_NAME).unlink()
    (checkpoint / "pytorch_model.bin").write_bytes(b"pickle")
    assert "has pickled weights only (pytorch_model.bin)" in failed_export(capsys, checkpoint)
    (checkpoint / "pytorch_model.bin").unlink()
    assert "has neither model.safetensors" in failed_export(capsys, checkpoint)


def test_a_wrong_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    edit_weights(checkpoint, {"model.layers.1.mlp.up_proj.weight": torch.randn(32, 48)})
    message = failed_export(capsys, checkpoint)
    assert "model.layers.1.mlp.up_proj.weight has the shape [32, 48]" in message
    assert "[48, 32]" in message


def test_a_missing_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    edit_weights(checkpoint, {"model.layers.0.self_attn.k_proj.bias": None})
    assert "no tensor model.layers.0.self_attn.k_proj.bias" in failed_export(capsys, checkpoint)


def test_an_extra_tensor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = small_checkpoint(tmp_path / "checkpoint")
    edit_weights(checkpoint, {"model.layers.2.mlp.up_proj.weight": torch.randn(48, 32)})
    assert "model.layers.2.mlp.up_proj.weight" in failed_export(capsys, checkpoint)
