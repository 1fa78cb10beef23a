import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.export.checkpoints import edit_weights, shard, small_checkpoint

from lopa.export.checkpoint.tensors import INDEX_NAME, SINGLE_NAME, tensors_from_checkpoint
from lopa.export.source import source_from_checkpoint
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


def test_a_folder_without_weights(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"has neither model\.safetensors nor model\.safetensors\.index\.json"):
        tensors_from_checkpoint(tmp_path)


def test_a_truncated_shard(tmp_path: Path) -> None:
    last = shard(small_checkpoint(tmp_path))[-1]
    content = last.read_bytes()
    for kept in (0, 4, 200, -1):
        last.write_bytes(content[:kept])
        with pytest.raises(BadInputError, match=f"{last} is truncated"):
            tensors_from_checkpoint(tmp_path)


def test_an_index_that_names_a_missing_tensor(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    shards = shard(checkpoint)
    index = json.loads((checkpoint / INDEX_NAME).read_text())
    index["weight_map"]["model.norm.weight"] = next(
        path.name for path in shards if path.name != index["weight_map"]["model.norm.weight"]
    )
    (checkpoint / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(BadInputError, match=r"places 'model\.norm\.weight' in"):
        tensors_from_checkpoint(checkpoint)


@pytest.mark.parametrize("index", [{}, {"weight_map": ["a"]}, {"weight_map": {"a": 1}}])
def test_an_index_without_a_table(tmp_path: Path, index: object) -> None:
    (small_checkpoint(tmp_path) / INDEX_NAME).write_text(json.dumps(index))
    with pytest.raises(BadInputError, match="no weight_map"):
        tensors_from_checkpoint(tmp_path)


def _both_forms(checkpoint: Path) -> tuple[dict[str, torch.Tensor], list[Path]]:
    """Give the checkpoint shards beside its single file. Return the tensors and the shards."""
    whole = load_file(checkpoint / SINGLE_NAME)
    shards = shard(checkpoint)
    save_file(whole, checkpoint / SINGLE_NAME, {"format": "pt"})
    return whole, shards


@pytest.mark.parametrize("change", ["value", "extra", "missing", "dtype"])
def test_a_single_file_beside_an_index(tmp_path: Path, change: str) -> None:
    """Transformers reads the single file. Equal shards, of any type, are the same checkpoint."""
    checkpoint = small_checkpoint(tmp_path)
    whole, shards = _both_forms(checkpoint)
    assert {tensor.file for tensor in tensors_from_checkpoint(checkpoint).values()} == {checkpoint / SINGLE_NAME}
    tensors = load_file(shards[1])
    name = max(tensors, key=lambda each: tensors[each].numel())
    if change == "dtype":
        save_file({**tensors, name: tensors[name].double()}, shards[1])
        assert torch.equal(tensors_from_checkpoint(checkpoint)[name].read(), whole[name])
        return
    if change == "value":
        tensors[name][-1, -1] += 1
        save_file(tensors, shards[1])
    else:
        edit_weights(
            checkpoint,
            {"lm_head.weight" if change == "missing" else "extra": None if change == "missing" else torch.ones(3)},
        )
        name = "lm_head.weight" if change == "missing" else "extra"
    with pytest.raises(BadInputError, match=f"differ in the tensor {name}") as caught:
        tensors_from_checkpoint(checkpoint)
    assert "transformers reads model.safetensors" in caught.value.remedy


def test_a_tensor_in_two_shards(tmp_path: Path) -> None:
    """Transformers reads every tensor of every shard, the last one of a name."""
    checkpoint = small_checkpoint(tmp_path)
    first, second, _ = shard(checkpoint)
    tensors, others = load_file(first), load_file(second)
    name = next(name for name in tensors if tensors[name].ndim == 2)
    save_file({**others, name: tensors[name]}, second)
    assert torch.equal(tensors_from_checkpoint(checkpoint)[name].read(), tensors[name])
    changed = tensors[name].clone()
    changed[0, 0] += 1
    save_file({**others, name: changed}, second)
    with pytest.raises(BadInputError, match=f"differ in the tensor {name}"):
        tensors_from_checkpoint(checkpoint)


def test_a_tensor_that_the_index_does_not_name(tmp_path: Path) -> None:
    checkpoint = small_checkpoint(tmp_path)
    shards = shard(checkpoint)
    index = json.loads((checkpoint / INDEX_NAME).read_text())
    del index["weight_map"]["lm_head.weight"]
    (checkpoint / INDEX_NAME).write_text(json.dumps(index))
    stored = tensors_from_checkpoint(checkpoint)["lm_head.weight"]
    assert stored.file in shards


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.o_proj.bias", "model.layers.1.mlp.down_proj.bias"])
def test_biases_of_zeros_change_nothing(tmp_path: Path, name: str) -> None:
    """AutoGPTQ writes a bias for each matrix. Every other tensor that the family does not have is refused."""
    checkpoint = small_checkpoint(tmp_path)
    edit_weights(checkpoint, {name: torch.zeros(32)})
    assert source_from_checkpoint(checkpoint, None).planned
    edit_weights(checkpoint, {name: torch.eye(32)[5]})
    with pytest.raises(BadInputError, match=f"has the tensor {name}, which"):
        source_from_checkpoint(checkpoint, None)
    edit_weights(checkpoint, {name: None, "model.layers.0.mlp.other.bias": torch.zeros(32)})
    with pytest.raises(BadInputError, match=r"has the tensor model\.layers\.0\.mlp\.other\.bias"):
        source_from_checkpoint(checkpoint, None)
